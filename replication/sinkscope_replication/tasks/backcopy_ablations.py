"""Ablations of Bigram-Backcopy models (Guo et al. 2024a; GuoTianYu2000/Active-Dormant-Attention, BBM)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from sinkscope.experiments import Metrics
from sinkscope.hooks import Editor, attention_layers, blocks, editing
from sinkscope.interventions import ZeroHeads
from sinkscope_replication.tasks.backcopy_law import Law
from sinkscope_replication.tasks.backcopy_reading import Reading


def diagonal(ids: Int[Tensor, "sample position"]) -> Float[Tensor, "sample query key"]:
    """A[t, t] = 1: every token attends to itself."""
    return torch.eye(ids.shape[1], device=ids.device).expand(len(ids), -1, -1)


def all_on_first(ids: Int[Tensor, "sample position"]) -> Float[Tensor, "sample query key"]:
    """A[t, 0] = 1: every token attends to the BOS."""
    return one_each(torch.zeros_like(ids))


def all_on_previous(ids: Int[Tensor, "sample position"]) -> Float[Tensor, "sample query key"]:
    """A[t, t − 1] = 1: every token attends to the one before, the BOS to itself."""
    return one_each(torch.arange(ids.shape[1], device=ids.device).sub(1).clamp(min=0).expand_as(ids))


def one_each(keys: Int[Tensor, "sample query"]) -> Float[Tensor, "sample query key"]:
    """A[t, keys[t]] = 1."""
    return nn.functional.one_hot(keys, keys.shape[1]).float()


def ideal(law: Law, ids: Int[Tensor, "sample position"]) -> Float[Tensor, "sample query key"]:
    """A[t, t − 1] = 1 at triggers, A[t, 0] = 1 elsewhere: what the task asks for, and no more."""
    positions = torch.arange(ids.shape[1], device=ids.device)
    return one_each(torch.where(law.is_trigger(ids), positions - 1, 0))


@dataclass(eq=False)
class Forced(Editor):
    """Makes heads of one layer return Σ_k `weights`[t, k] v_k, whatever they attend to: use with `editing`."""

    layer: nn.Module
    weights: Float[Tensor, "sample query key"]
    _value: Tensor = field(default_factory=lambda: torch.empty(0))

    def edits(self, module: nn.Module) -> bool:
        return module is self.layer

    def given(self, module: nn.Module, implementation: str | None, arguments: dict[str, Any]) -> dict[str, Any]:
        self._value = arguments["value"]
        return arguments

    def returned(self, module: nn.Module, output: Tensor) -> Tensor:
        value = self._value.repeat_interleave(output.shape[2] // self._value.shape[1], 1)
        return (self.weights[:, None].to(value) @ value).transpose(1, 2)


@dataclass(frozen=True, eq=False)
class WithoutValue(Editor):
    """Makes the first token's values in one layer zero: use with `editing`."""

    layer: nn.Module

    def edits(self, module: nn.Module) -> bool:
        return module is self.layer

    def given(self, module: nn.Module, implementation: str | None, arguments: dict[str, Any]) -> dict[str, Any]:
        value = arguments["value"].clone()
        value[:, :, 0] = 0
        return arguments | {"value": value}


@contextmanager
def without_feed_forward(block: nn.Module) -> Iterator[None]:
    """The block's feed-forward adds nothing to the first token."""

    def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        output = output.clone()
        output[:, 0] = 0
        return output

    handle = block.get_submodule("mlp").register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def ablated(reading: Reading, model: PreTrainedModel) -> Metrics:
    """Excess losses under each intervention: `excess_triggers/zero_head`, `excess_others/zero_head` and so on.

    `zero_head/layer=0` …: all heads of a layer give zero; `zero_head`: of the layer whose loss costs triggers most, the
    active one, on which the others are done too. `diagonal`, `ideal`, `all_on_first`, `all_on_previous`: its heads
    attend as these functions say (the last two are the source's test of values, for all queries at once).
    `bos_attention`, `bos_value`, `bos_feed_forward`: the BOS gets nothing from that layer's heads; has zero values in
    it; gets nothing from the feed-forward after it.
    """
    layers, heads = tuple(attention_layers(model)), range(model.config.num_attention_heads)
    ids = reading.ids.to(model.device)
    zeroed = {}
    for index in range(len(layers)):
        with ZeroHeads([(index, head) for head in heads]).applied(model):
            zeroed[index] = reading.losses(model)
        yield from _named(zeroed[index], f"zero_head/layer={index}")
    active = max(zeroed, key=lambda index: zeroed[index]["excess_triggers"])
    yield from _named(zeroed[active], "zero_head")
    layer, block = layers[active], blocks(model)[active].module
    changes = {
        "diagonal": editing(Forced(layer, diagonal(ids))),
        "ideal": editing(Forced(layer, ideal(reading.law, ids))),
        "all_on_first": editing(Forced(layer, all_on_first(ids))),
        "all_on_previous": editing(Forced(layer, all_on_previous(ids))),
        "bos_attention": ZeroHeads([(active, head) for head in heads], positions=[0]).applied(model),
        "bos_value": editing(WithoutValue(layer)),
        "bos_feed_forward": without_feed_forward(block),
    }
    for name, change in changes.items():
        with change:
            losses = reading.losses(model)
        yield from _named(losses, name)


def _named(losses: Mapping[str, float], intervention: str) -> Sequence[tuple[str, float]]:
    return [(f"{name}/{intervention}", value) for name, value in losses.items()]
