"""The models that theory is checked on: lab models with random weights in float64, attention far from uniform."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sinkscope.attention import Attended, Full, Learned, attend, resolve
from sinkscope.measurement import AttentionReceived, Measurement, measure
from sinkscope.model import LabBlock, LabConfig, LabForCausalLM

SHARPER = 2.5
"""Factor on query and key projections: random models of this width would attend almost uniformly."""

VOCABULARY = 61
TOKEN = 7
HEADS = 8

Build = Callable[..., LabForCausalLM]


def lab(seed: int = 0, **options: Any) -> LabForCausalLM:
    """Two layers, eight heads of width 8 in four groups, random weights; `options` are fields of `LabConfig`.

    Parameters that start at zero or as constants (biases of positions, slots, gates) are random as well, so that no
    identity holds because something is switched off.
    """
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 4,
        "intermediate_size": 96,
        "max_position_embeddings": 1024,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LabForCausalLM(LabConfig(**{**sizes, **options})).eval()
        with torch.no_grad():
            for layer in blocks(model):
                layer.self_attn.q_proj.weight *= SHARPER
                layer.self_attn.k_proj.weight *= SHARPER
            for module in model.modules():
                if isinstance(module, Learned):
                    for parameter in module.parameters(recurse=False):
                        parameter.normal_()
    return model.double()


def blocks(model: LabForCausalLM) -> list[LabBlock]:
    """The model's blocks, typed."""
    return [layer for layer in model.model.layers if isinstance(layer, LabBlock)]


def fill_slots(model: LabForCausalLM, value: float) -> LabForCausalLM:
    """Write a number into all that the slots have learned, and return the model."""
    with torch.no_grad():
        for layer in blocks(model):
            for parameter in layer.self_attn.operation.slot_modules.parameters():
                parameter.fill_(value)
    return model


def repeated(tokens: int, token: int = TOKEN) -> Int[Tensor, "1 position"]:
    """One token, again and again."""
    return torch.full((1, tokens), token)


def ordinary(tokens: int, samples: int = 1, seed: int = 1) -> Int[Tensor, "sample position"]:
    """Tokens drawn at random."""
    return torch.randint(0, VOCABULARY, (samples, tokens), generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True, eq=False)
class Seen:
    """One forward pass on one sample, in float64: hidden states of every depth, weights of every layer, logits."""

    hidden: Float[Tensor, "depth position width"]
    weights: Float[Tensor, "layer head query key"]
    logits: Float[Tensor, "position vocabulary"]


def look(model: LabForCausalLM, ids: Int[Tensor, "1 position"]) -> Seen:
    """Run the model by its naive reference and keep what it computed on the way."""
    with torch.no_grad():
        out = model(ids, output_attentions=True, output_hidden_states=True, use_cache=False)
    return Seen(torch.cat(out.hidden_states), torch.cat(out.attentions), out.logits[0])


def measured(model: LabForCausalLM, ids: Int[Tensor, "sample position"]) -> Measurement:
    """Attention received, as `sinkscope.measure` finds it on any model."""
    return measure(model, ids, [AttentionReceived("all")])


def alphas(model: LabForCausalLM, ids: Int[Tensor, "1 position"]) -> Float[Tensor, "layer head position"]:
    """alpha_k of every layer, head and position, measured."""
    return torch.from_numpy(measured(model, ids).data["attention_received"].values[0]).double()


def gap(one: Tensor, other: Tensor) -> float:
    """The largest difference of two tensors, whose shapes broadcast."""
    return float((one - other).detach().abs().max())


def weights_of(attention: dict[str, Any] | str, scores: Float[Tensor, "row key"]) -> Float[Tensor, "row key"]:
    """The weights that an operation without parameters gives to tokens with these scores, in float64."""
    key = torch.eye(scores.shape[1], dtype=torch.float64)[None, None]
    attended = attend(
        scores.double()[None, None], key, key, resolve(attention), mask=Full(), scaling=1.0, path="reference"
    )
    assert attended.weights is not None
    return attended.weights[0, 0]


def row_of_weights(attention: dict[str, Any] | str, scores: Sequence[float]) -> Float[Tensor, "key"]:
    """The same of one row."""
    return weights_of(attention, torch.tensor([scores], dtype=torch.float64))[0]


@dataclass(frozen=True, eq=False)
class Caught:
    """What went into an operation of a model and what came out, on one sample."""

    query: Float[Tensor, "heads position dim"]
    key: Float[Tensor, "kv_heads position dim"]
    value: Float[Tensor, "kv_heads position dim"]
    output: Float[Tensor, "heads position dim"]


def caught(model: LabForCausalLM, ids: Int[Tensor, "1 position"], layer: int = 0) -> Caught:
    """Run a model and catch one layer's call of its operation."""
    calls: list[Caught] = []

    def keep(_: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Any], out: Attended) -> None:
        query, key, value = (tensor[0] for tensor in inputs[:3])
        calls.append(Caught(query, key, value, out.output[0]))

    handle = blocks(model)[layer].self_attn.operation.register_forward_hook(keep, with_kwargs=True)
    try:
        with torch.no_grad():
            model(ids, use_cache=False)
    finally:
        handle.remove()
    return calls[0]
