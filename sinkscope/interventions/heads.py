"""Zeroing heads (Gu et al. 2025, section 7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.errors import InputError
from sinkscope.hooks import Editor, OpenStream, head_count
from sinkscope.interventions.head_controls import ANY_HEADS, HeadControl, every_head
from sinkscope.interventions.intervention import Intervention, whole


def head_pairs(heads: Sequence[Any]) -> tuple[tuple[int, int], ...]:
    """(layer, head) pairs. Raises `InputError` for anything else, for none, and for a pair given twice."""
    pairs = tuple(tuple(pair) if isinstance(pair, Sequence) else () for pair in heads)
    for head, pair in zip(heads, pairs, strict=True):
        if len(pair) != 2 or not all(isinstance(value, int) and value >= 0 for value in pair):
            raise InputError(f"head {head!r}: expected (layer, head), non-negative integers")
    if not pairs or len(set(pairs)) != len(pairs):
        raise InputError("heads: expected at least one (layer, head), all different")
    return pairs


@dataclass(frozen=True)
class ZeroHeads(Intervention):
    """Σ_j A_tj v_j = 0 for each (layer, head): the output of the head in the attention function is zero.

    Layers are running numbers over the attention layers, the rows of a measurement. `positions`: only for these
    queries; None for all. Gates and norms between heads and output projection then act on zeros; measured weights stay
    those of the layer. Control: as many other heads, drawn by `against`: `AnyHeads()`, `SameLayer()`, or
    `SameNorm.of(model, inputs)`. Raises `InputError` for anything but pairs, and when applied, for a layer or head that
    does not exist. Source: Gu et al. 2025, section 7, "is the sink head doing nothing?".
    """

    heads: Sequence[Any]
    positions: Sequence[Any] | None = None
    against: HeadControl = ANY_HEADS

    def __post_init__(self) -> None:
        object.__setattr__(self, "heads", head_pairs(self.heads))
        if self.positions is not None:
            object.__setattr__(self, "positions", whole("positions", self.positions))

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        opened = OpenStream(model, stack)
        opened.stream.attention(model)
        heads: dict[nn.Module, list[int]] = {}
        for layer, head in self.heads:
            attention = opened.stream.layer(layer)
            count = head_count(model, attention)
            if head >= count:
                raise InputError(f"head {head} does not exist: layer {layer} has heads 0 to {count - 1}")
            heads.setdefault(attention, []).append(head)
        for attention in heads:
            opened.only_once(attention)
        opened.require(*([attention] for attention in heads))
        opened.edit_attention(_Zeroing(opened, heads, self.positions))

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> ZeroHeads:
        heads = every_head(model)
        try:
            return ZeroHeads(self.against.drawn(generator, self.heads, heads), self.positions)
        except InputError as error:
            raise InputError(f"{error}, at most {max(1, (len(heads) - 1) // 2)} of the {len(heads)} heads") from error

    @property
    def positions_named(self) -> tuple[int, ...]:
        return () if self.positions is None else tuple(self.positions)

    def describe(self) -> dict[str, Any]:
        return {
            "name": type(self).__name__,
            "heads": self.heads,
            "positions": self.positions,
            "control": self.against.describe(),
        }


@dataclass(frozen=True, eq=False)
class _Zeroing(Editor):
    """Zeroes heads in the output of attention functions."""

    opened: OpenStream
    heads: Mapping[nn.Module, Sequence[int]]
    positions: Sequence[Any] | None

    def edits(self, module: nn.Module) -> bool:
        return module in self.heads

    def returned(self, module: nn.Module, output: Tensor) -> Tensor:
        self.opened.edited(module)
        chosen = self.opened.at(None if self.positions is None else tuple(self.positions), output.flatten(2))
        # Watchers and other editors hold this tensor as what the layer's function returned.
        output = output.clone()
        for head in self.heads[module]:
            output[:, :, head].masked_fill_(chosen[..., None], 0.0)
        return output


@dataclass(frozen=True)
class MatchVariance(Intervention):
    """Head outputs of the query at `position`, scaled to the variance of those at `like`, in every head of each layer.

    With o = Σ_j A_tj v_j over its channels, mean m and variance var: by="output" o_t ← m_t + s (o_t − m_t), by="values"
    every value that t reads is multiplied by s, so o_t ← s o_t; s = √(var(o_like) / var(o_t)), of the same text and
    head, in the same pass. The two differ by the mean over channels, since attention is linear in values. `seed`: not
    scaled, but moved as far in a random direction, one per layer and head: the control.

    A causal query t that attends uniformly averages t + 1 values: of i.i.d. values of variance σ² its output has
    σ² / (t + 1), and the first token keeps σ². Source: Li et al. 2026 (2605.06611), whose abstract
    names this as the cause of sinks, and the intervention "amplifying the variance of targeted token representations";
    where it is amplified there could not be read.
    Raises `InputError` for a pass that has not both positions.
    """

    position: int
    like: int = 0
    by: Literal["output", "values"] = "output"
    seed: int | None = None

    def __post_init__(self) -> None:
        whole("positions", (self.position, self.like))
        if self.by not in ("output", "values"):
            raise InputError(f"by = {self.by!r}: 'output' or 'values'")

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        opened = OpenStream(model, stack)
        layers = {module: number for number, module in enumerate(opened.stream.attention(model))}
        opened.require(layers)
        opened.edit_attention(_Scaling(opened, layers, self))

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> MatchVariance:
        return replace(self, seed=int(torch.randint(1 << 30, (), generator=generator)))

    @property
    def positions_named(self) -> tuple[int, ...]:
        return self.position, self.like

    def scaled(self, output: Float[Tensor, "batch heads dim"], like: Float[Tensor, "batch heads dim"]) -> Tensor:
        """`output` with the variance of `like`."""
        ratio = like.var(-1, correction=0, keepdim=True) / output.var(-1, correction=0, keepdim=True)
        mean = output.mean(-1, keepdim=True) if self.by == "output" else 0.0
        # An output without variance (x / 0 or 0 / 0) can be scaled to no other, and stays.
        return mean + ratio.sqrt().nan_to_num(1.0, posinf=1.0) * (output - mean)


@dataclass(frozen=True, eq=False)
class _Scaling(Editor):
    """Gives a query's head outputs the variance of another's."""

    opened: OpenStream
    layers: Mapping[nn.Module, int]
    change: MatchVariance

    def edits(self, module: nn.Module) -> bool:
        return module in self.layers

    def returned(self, module: nn.Module, output: Tensor) -> Tensor:
        self.opened.edited(module)
        rows = torch.arange(len(output), device=output.device)
        at = []
        for position in (self.change.position, self.change.like):
            chosen = self.opened.at((position,), output.flatten(2)).expand(output.shape[:2])
            if not bool(chosen.any(1).all()):
                raise InputError(f"position {position} is not in this pass: MatchVariance changes whole texts only")
            at.append(chosen.int().argmax(1))  # one column per row: padding shifts it
        outputs, like = (output[rows, columns].float() for columns in at)
        scaled = self.change.scaled(outputs, like)
        if self.change.seed is not None:
            generator = torch.Generator().manual_seed(self.change.seed + self.layers[module])
            # (heads, dim), the same for all texts: the control must not depend on how they are batched.
            direction = torch.randn(outputs.shape[1:], generator=generator).to(outputs)
            far = (scaled - outputs).norm(dim=-1, keepdim=True)
            scaled = outputs + far * direction / direction.norm(dim=-1, keepdim=True)
        output = output.clone()
        output[rows, at[0]] = scaled.to(output.dtype)
        return output
