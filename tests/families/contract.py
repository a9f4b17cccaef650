"""What must hold for every family: all layers are seen, weights agree with eager attention, logits do not change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.attention import CATALOG
from sinkscope.errors import UnsupportedModelError
from sinkscope.measurement import Measurement
from sinkscope.measurement.observers.observer import Observer
from sinkscope.measurement.observers.received import AttentionReceived
from sinkscope.measurement.observing import observe
from tests.families.reference import Maps, eager_attention
from tests.families.registry import COLLECTED, FAMILIES, REFUSED, Host

TOLERANCE, SHARP = 1e-5, 1.5
# Stacks whose layers have no numbers, as the measurement's record says: linear attention, attention within blocks,
# images that share one row, the pooling of one query.
LEFT_OUT: dict[str, tuple[str, ...]] = {
    "minimax": ("model.layers.*.self_attn",),
    "longt5": ("encoder", "encoder.block.*.layer.*"),
    "siglip_vision": ("head",),
    "qwen2_vl": ("vision",),
    "qwen3_vl": ("vision",),
}


@dataclass(frozen=True)
class Row:
    """What came of one model. `calls`: layers measured; `layers`: attention maps the model itself returns.

    `error`: largest difference of attention received; `peak`: smallest layer's mean largest weight of a row, over that
    of uniform attention. `left_out`: stacks whose layers have no numbers, as the measurement's record says.
    """

    family: str
    host: str
    calls: int
    layers: int
    error: float
    logits_unchanged: bool
    peak: float
    left_out: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether everything was seen and agrees, on attention far enough from uniform for that to mean something."""
        agrees = self.calls == self.layers and self.error <= TOLERANCE
        seen = self.left_out == LEFT_OUT.get(self.family, ())
        return agrees and seen and self.logits_unchanged and self.peak > SHARP


def check(name: str, host: Host) -> Row:
    """Measure a family's tiny model and compare with its eager attention maps."""
    family = FAMILIES[name] if name in FAMILIES else COLLECTED[name]
    return compare(name, host, family.build(host), family.inputs(), _eager_maps(name))


@lru_cache(maxsize=1)  # both hosts of a family are checked in turn
def _eager_maps(name: str) -> Maps:
    family = FAMILIES[name] if name in FAMILIES else COLLECTED[name]
    return eager_attention(family, family.inputs())


def compare(name: str, host: str, model: nn.Module, inputs: Mapping[str, Tensor], maps: Maps) -> Row:
    """Measure one forward pass of `model` and compare it with `maps`; a model of one stack may leave it nameless."""
    with torch.no_grad():
        plain = model(**inputs)[0]
        measurement, seen = observed(model, inputs, AttentionReceived())
    found = by_stack(measurement)
    maps = {stack or next(iter(found)): layers for stack, layers in maps.items()}
    left_out = tuple(sorted(measurement.record["not_measured"].keys() - found.keys()))
    wanted = {stack: layers for stack, layers in maps.items() if stack not in left_out}
    errors = [
        difference(own.received, other)
        for stack, layers in wanted.items()
        for own, other in zip(layers, found.get(stack, []), strict=False)
    ]
    return Row(
        family=name,
        host=host,
        calls=sum(map(len, found.values())),
        layers=sum(map(len, wanted.values())),
        error=max(errors),
        logits_unchanged=torch.equal(plain, seen),
        peak=min(own.sharpness for layers in wanted.values() for own in layers),
        left_out=left_out,
    )


def observed(model: nn.Module, inputs: Mapping[str, Tensor], *observers: Observer) -> tuple[Measurement, Tensor]:
    """A measurement of one forward pass, rows read whole, and the pass's first output."""
    with observe(model, *observers, apart=False) as seen:
        first = model(**inputs)[0]
    return seen.measurement(), first


def refusal(name: str) -> str:
    """Why a family is refused. Raises `AssertionError` where it is not."""
    family = REFUSED[name]
    model = family.build(family.hosts[0])
    try:
        with torch.no_grad():
            observed(model, family.inputs(), AttentionReceived())
    except UnsupportedModelError as error:
        return str(error)
    raise AssertionError(f"{name} was measured although its numbers cannot be right")


def by_stack(measurement: Measurement) -> dict[str, list[Float[Tensor, "batch heads position"]]]:
    """Attention received of each layer of each stack."""
    values = torch.from_numpy(measurement.data["attention_received"].values)
    stacks: dict[str, list[Tensor]] = {}
    for layer, stack in enumerate(measurement.data["stack"].values.tolist()):
        stacks.setdefault(stack, []).append(values[:, layer])
    return stacks


def difference(wanted: Tensor, found: Tensor) -> float:
    """Largest difference; infinite unless NaN are the keys that no query sees, and what only larger stacks have."""
    whole = torch.full_like(found, torch.nan)
    whole[:, : wanted.shape[1], : wanted.shape[2]] = wanted
    if not torch.equal(whole.isnan(), found.isnan()):
        return float("inf")
    return float((whole - found).abs().nan_to_num(0.0).max())


def table() -> str:
    """What keeps the contract, as a Markdown table; what is refused comes last. Whether it does, the tests say."""
    lines = ["| family | attention | not measured |", "|---|---|---|"]
    for name, family in (FAMILIES | COLLECTED).items():
        hosts = [host for host in family.hosts if family.obstacle(host) is None]
        if hosts:
            shown = "its own" if name in COLLECTED else ", ".join(hosts)
            lines.append(f"| {name} | {shown} | {', '.join(LEFT_OUT.get(name, ()))} |")
    lines += [f"| lab: {name} | its own | |" for name in CATALOG]
    lines += [f"| {name} | its own | refused: {refusal(name)} |" for name, family in REFUSED.items() if family.exists]
    return "\n".join(lines)
