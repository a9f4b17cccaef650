"""What must hold for every family: all layers are seen, weights agree with eager attention, logits do not change."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from sinkscope.errors import UnsupportedModelError
from sinkscope.probes.contracts.families import FAMILIES, LEGACY, Family, Host
from sinkscope.probes.measurements.measurement import Measurement
from sinkscope.probes.observers.observer import Observer
from sinkscope.probes.observers.received import AttentionReceived
from sinkscope.probes.observing import observe
from sinkscope.probes.structure.layers import attention_layers

Maps = dict[str, list[Float[Tensor, "batch heads query key"]]]  # by stack, layer after layer


@dataclass(frozen=True)
class Row:
    """One line of the table. `calls`: layers measured; `layers`: attention maps the model itself returns.

    `error`: largest difference of attention received; `peak`: smallest layer's mean largest weight of a row, over that
    of uniform attention.
    """

    family: str
    host: Host
    calls: int
    layers: int
    error: float
    logits_unchanged: bool
    peak: float


def check(name: str, host: Host) -> Row:
    """Measure a family's tiny model and compare with its eager attention maps."""
    family = FAMILIES[name]
    model, inputs = family.build(host), family.inputs()
    maps = eager_maps(family, inputs)
    with torch.no_grad():
        plain = model(**inputs)[0]
        measurement, seen = observed(model, inputs, AttentionReceived())
    wanted = {stack: [received(weights) for weights in layers] for stack, layers in maps.items()}
    found = by_stack(measurement)
    errors = [
        difference(one, other)
        for stack, layers in wanted.items()
        for one, other in zip(layers, found.get(stack, []), strict=False)
    ]
    return Row(
        family=name,
        host=host,
        calls=sum(map(len, found.values())),
        layers=sum(map(len, wanted.values())),
        error=max(errors),
        logits_unchanged=torch.equal(plain, seen),
        peak=min(sharpness(weights) for layers in maps.values() for weights in layers),
    )


def observed(model: nn.Module, inputs: dict[str, Tensor], *observers: Observer) -> tuple[Measurement, Tensor]:
    """A measurement of one forward pass, and the pass's first output."""
    with observe(model, *observers) as seen:
        first = model(**inputs)[0]
    return seen.measurement(), first


def eager_maps(family: Family, inputs: dict[str, Tensor]) -> Maps:
    """The attention maps that the family's eager attention returns, corrected where they omit a learned sink."""
    model = family.build("eager")
    with torch.no_grad(), _scaled_by_sink(model) if family.eager_omits_sink else _as_it_is():
        outputs = model(**inputs, output_attentions=True)
    if family.kind == "pairs":
        stacks = {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}
        return {stack: list(outputs[name]) for stack, name in stacks.items()}
    stack = next(iter(attention_layers(model).values())).stack
    return {stack: list(outputs.attentions)}


def received(weights: Float[Tensor, "*batch query key"]) -> Float[Tensor, "*batch key"]:
    """alpha_k from a whole attention map; it is causal where nothing looks ahead."""
    queries, keys = weights.shape[-2:]
    causal = queries == keys and not bool(weights.triu(1).any())
    counts = torch.arange(keys, 0, -1) if causal else torch.full((keys,), queries)
    return weights.sum(-2) / counts


def by_stack(measurement: Measurement) -> dict[str, list[Float[Tensor, "batch heads position"]]]:
    """Attention received of each layer of each stack."""
    values = torch.from_numpy(measurement.data["attention_received"].values)
    stacks: dict[str, list[Tensor]] = {}
    for layer, stack in enumerate(measurement.data["stack"].values.tolist()):
        stacks.setdefault(stack, []).append(values[:, layer])
    return stacks


def difference(wanted: Tensor, found: Tensor) -> float:
    """Largest difference; positions that only the longer stacks of a model have must be NaN in `found`."""
    keys = wanted.shape[-1]
    if not bool(found[..., keys:].isnan().all()):
        return float("inf")
    return float((wanted - found[..., :keys]).abs().nan_to_num(torch.inf).max())


def sharpness(weights: Float[Tensor, "batch heads query key"]) -> float:
    """Mean over rows of the largest weight, over the same mean for uniform attention on the keys with any weight."""
    visible = (weights > 0).any(0, keepdim=True).any(1, keepdim=True)
    return float(weights.amax(-1).mean() / (1 / visible.sum(-1)).mean())


def table() -> str:
    """The contract as a Markdown table; families that are refused come last, with the reason."""
    lines = [
        "| family | attention | calls seen / attention layers | largest error against eager | logits unchanged |",
        "|---|---|---|---|---|",
    ]
    for name, family in FAMILIES.items():
        for host in family.hosts if family.exists else ():
            row = check(name, host)
            unchanged = "yes" if row.logits_unchanged else "NO"
            lines.append(f"| {name} | {host} | {row.calls} / {row.layers} | {row.error:.0e} | {unchanged} |")
    lines += [f"| {name} | its own | {_refusal(name)} | | |" for name in LEGACY]
    return "\n".join(lines)


def _refusal(name: str) -> str:
    try:
        attention_layers(LEGACY[name].build())
    except UnsupportedModelError:
        return "refused: not dispatched through AttentionInterface"
    return "NOT refused"


@contextmanager
def _scaled_by_sink(model: PreTrainedModel) -> Iterator[None]:
    """Multiply the maps that an eager function returns by sigmoid(lse − sink), as its output already is."""
    home = sys.modules[type(model).__module__]
    original = vars(home)["eager_attention_forward"]

    def corrected(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **kwargs: Any) -> Any:
        output, weights = original(module, query, key, value, mask, **kwargs)
        keys = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
        lse = torch.logsumexp(query @ keys.mT * kwargs["scaling"] + mask, -1)
        return output, weights * torch.sigmoid(lse - kwargs["s_aux"][:, None])[..., None]

    vars(home)["eager_attention_forward"] = corrected
    try:
        yield
    finally:
        vars(home)["eager_attention_forward"] = original


@contextmanager
def _as_it_is() -> Iterator[None]:
    yield
