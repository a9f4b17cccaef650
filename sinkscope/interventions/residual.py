"""Interventions on the residual stream: single activations, and what a block adds for a token (Sun et al. 2024)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.errors import InputError, UnsupportedModelError, unknown
from sinkscope.hooks import (
    Edit,
    OpenStream,
    Projection,
    Stream,
    batches,
    checked_inputs,
    evaluating,
    projections,
    read_stream,
    row_length,
    unwrapped,
    width_of,
    without_logits,
)
from sinkscope.interventions.intervention import Intervention, draw, whole

Entry = tuple[int, int | None, int]
VALUES = ("zero", "mean")


@dataclass(frozen=True)
class SetActivations(Intervention):
    """h^(depth)[position, dim] = 0, or its mean over data, for each entry (depth, position, dim).

    Depth 0 enters the first block, depth d leaves block d − 1, before any final norm; position None is every token.
    `value="mean"` needs `means`, one number per entry: use `SetActivations.at_mean`. Control: as many entries at the
    same depths, other positions and other dimensions, set the same way. Raises `InputError` for malformed entries
    and an unknown value.
    Source: Sun et al. 2024, section 4.1, who set the massive activations of one depth.
    """

    entries: Sequence[Any]
    value: Literal["zero", "mean"] = "zero"
    means: Sequence[float] = ()

    def __post_init__(self) -> None:
        if self.value not in VALUES:
            raise unknown("value", self.value, VALUES)
        object.__setattr__(self, "entries", entries_of(self.entries))
        object.__setattr__(self, "means", tuple(float(mean) for mean in self.means))
        if len(self.means) != (len(self.entries) if self.value == "mean" else 0):
            raise InputError(
                f"{len(self.means)} means for {len(self.entries)} entries set to '{self.value}': "
                "SetActivations.at_mean(model, inputs, entries) computes them"
            )

    @classmethod
    def at_mean(cls, model: nn.Module, inputs: Any, entries: Sequence[Any], batch_size: int = 8) -> SetActivations:
        """Entries set to their means over `inputs` (`mean_values`)."""
        return cls(entries, "mean", mean_values(model, inputs, entries, batch_size))

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        opened = OpenStream(model, stack)
        values = self.means or (0.0,) * len(self.entries)
        for depth in dict.fromkeys(depth for depth, _, _ in self.entries):
            edits = [
                (*entry[1:], value) for entry, value in zip(self.entries, values, strict=True) if entry[0] == depth
            ]
            opened.edit(depth, _setting(opened, edits))

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> SetActivations:
        length, width = row_length(model, inputs), width_of(model)
        taken = {dim for _, _, dim in self.entries}
        dims = draw(generator, [dim for dim in range(width) if dim not in taken], len(self.entries), "dimensions")
        named = set(self.positions_named)
        # Where every position is named, the control differs in its dimensions alone.
        others = [position for position in range(length) if position not in named] or list(range(length))
        indices = torch.randint(len(others), (len(self.entries),), generator=generator).tolist()
        entries = [
            (depth, None if position is None else others[index], dim)
            for (depth, position, _), index, dim in zip(self.entries, indices, dims, strict=True)
        ]
        return SetActivations(entries) if self.value == "zero" else SetActivations.at_mean(model, inputs, entries)

    @property
    def positions_named(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(position for _, position, _ in self.entries if position is not None))


@dataclass(frozen=True)
class _InBlock(Intervention):
    """Base of changes of block `depth` − 1 for the tokens at `positions`. Control: as many other tokens there."""

    depth: int
    positions: Sequence[Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "positions", whole("positions", self.positions))

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> Intervention:
        return replace(self, positions=other_positions(generator, model, inputs, self.positions_named))

    @property
    def positions_named(self) -> tuple[int, ...]:
        return tuple(self.positions)


@dataclass(frozen=True)
class RemoveContribution(_InBlock):
    """h^(depth) = h^(depth−1) for the tokens at `positions`: block depth − 1 adds nothing to them (Sun et al. 2024).

    At the depth of onset, where a token's norm jumps, this prevents the massive activation. Control: as many other
    tokens at the same depth.
    """

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        opened = OpenStream(model, stack)
        entered: list[Tensor] = []

        # One entry at a time: a block's input is put in before it runs, and taken out after.
        def undone(hidden: Tensor) -> Tensor:
            chosen = opened.at(self.positions_named, hidden)
            return torch.where(chosen[..., None], entered.pop().to(hidden), hidden)

        opened.read_input(self.depth, entered.append)
        opened.edit(self.depth, undone)


@dataclass(frozen=True)
class MuteFeedForward(_InBlock):
    """f(x_t) = 0 for the tokens at `positions` in the feed-forward of block `depth` − 1, whose attention still runs.

    In the block where a token's norm jumps, this takes away what makes the massive activation, as far as the
    feed-forward makes it. Control: as many other tokens in the same block.
    Source: Li et al. 2026 (2605.06611), whose abstract names "super neurons" of feed-forwards; switching off all of the
    block's feed-forward at one token is ours.
    Raises `UnsupportedModelError` for a block without a feed-forward whose output map is known, and for a mixture
    of experts, whose tokens come in no order.
    """

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        opened = OpenStream(model, stack)
        inside = set(opened.stream.block(self.depth).modules())
        outputs = [one for one in projections(model) if one.kind in ("down", "experts") and one.module in inside]
        if not outputs:
            raise UnsupportedModelError(
                f"family '{opened.stream.family}': no output map of a feed-forward was found in block {self.depth - 1}"
            )

        def muted(output: Tensor) -> Tensor:
            if output.ndim != 3:
                raise UnsupportedModelError(
                    f"family '{opened.stream.family}': the feed-forward of block {self.depth - 1} is given tokens in "
                    "no order, so none can be muted"
                )
            return torch.where(opened.at(self.positions_named, output)[..., None], 0.0, output)

        for each in outputs:
            each.edit_output(muted, opened.passes, stack)


READING = ("query", "key", "value", "query_latent", "latent", "gate", "up")
"""Kinds of linear maps that read the residual stream, after a norm in pre-norm blocks."""


@dataclass(frozen=True)
class SetReadings(Intervention):
    """x[position, dim] = a number, at the input of each linear map that reads the residual stream, after the norm.

    The stream itself stays, and so does what the entry does to the norm's divisor. `values`: the numbers of each map,
    by its path, as many as `dims`. Raises `InputError` for a path that reads no stream.
    """

    positions: Sequence[Any]
    dims: Sequence[int]
    values: Mapping[str, Sequence[float]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "positions", whole("positions", self.positions))
        object.__setattr__(self, "dims", whole("dims", self.dims))
        if any(len(numbers) != len(self.dims) for numbers in self.values.values()):
            raise InputError(f"values: {len(self.dims)} numbers for each map, one for each of dims")

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        opened, maps = OpenStream(model, stack), {each.path: each for each in readers(model)}
        for path, numbers in self.values.items():
            if path not in maps:
                raise unknown("map that reads the stream", path, maps)
            edit = _setting(
                opened, [(p, dim, n) for p in self.positions for dim, n in zip(self.dims, numbers, strict=True)]
            )
            maps[path].edit_input(edit, opened.passes, stack)

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> SetReadings:
        return replace(self, positions=other_positions(generator, model, inputs, self.positions_named))

    @property
    def positions_named(self) -> tuple[int, ...]:
        return tuple(self.positions)


def readers(model: nn.Module, depth: int = 0) -> list[Projection]:
    """The linear maps that read the residual stream at `depth` or deeper, one for each module."""
    inside = {module for block in Stream.of(model).blocks[depth:] for module in block.modules()}
    reading = [one for one in projections(model) if one.kind in READING and one.module in inside]
    width = width_of(model)
    # Maps after a low-rank latent (MLA) have the same kinds, and read the latent instead of the stream.
    return list({one.module: one for one in reading if one.weight.shape[1] == width}.values())


def mean_values(model: nn.Module, inputs: Any, entries: Sequence[Any], batch_size: int = 8) -> tuple[float, ...]:
    """Mean of h^(depth)[position, dim] over the rows of `inputs` for each entry; position None: over all real tokens.

    Raises `InputError` for a position that no row has.
    """
    model, entries = unwrapped(model), entries_of(entries)
    checked, samples = checked_inputs(model, inputs, batch_size)
    totals, counts = [0.0] * len(entries), [0] * len(entries)

    def read(depth: int, hidden: Float[Tensor, "batch position width"], opened: OpenStream) -> None:
        for index, (at, position, dim) in enumerate(entries):
            if at == depth:
                check_dim(dim, hidden)
                chosen = opened.at(None if position is None else (position,), hidden).expand(hidden.shape[:2])
                totals[index] += float(hidden[..., dim][chosen].double().sum())
                counts[index] += int(chosen.sum())

    # A depth that does not exist is refused before anything runs.
    depths = Stream.of(model)
    for depth, _, _ in entries:
        if depth:
            depths.block(depth)
    with evaluating(model), torch.no_grad(), read_stream(model, read):
        for batch in batches(model, checked, samples, batch_size):
            model(**batch | without_logits(model, batch))
    for entry, count in zip(entries, counts, strict=True):
        if not count:
            raise InputError(f"position {entry[1]} is in no row, so it has no mean")
    return tuple(total / count for total, count in zip(totals, counts, strict=True))


def other_positions(
    generator: torch.Generator,
    model: nn.Module,
    inputs: Mapping[str, Any],
    taken: Sequence[int],
    stop: int | None = None,
) -> tuple[int, ...]:
    """As many positions as `taken`, at random among all others that every row has.

    Args:
        generator: Decides the draw.
        model: Reads `inputs`.
        inputs: The model's, by name.
        taken: Positions that are not drawn.
        stop: Draw positions below this one; None: any.
    """
    length = row_length(model, inputs)
    free = [position for position in range(min(length, stop or length)) if position not in taken]
    return draw(generator, free, len(taken), "positions")


def _setting(opened: OpenStream, values: Sequence[tuple[int | None, int, float]]) -> Edit:
    def edit(hidden: Tensor) -> Tensor:
        # Observers and collected hidden states may hold this tensor.
        hidden = hidden.clone()
        for position, dim, value in values:
            check_dim(dim, hidden)
            chosen = opened.at(None if position is None else (position,), hidden)
            hidden[..., dim] = torch.where(chosen, torch.full_like(hidden[..., dim], value), hidden[..., dim])
        return hidden

    return edit


def entries_of(entries: Any) -> tuple[Entry, ...]:
    """(depth, position or None, dimension) triples. Raises `InputError` for anything else."""
    checked = [tuple(triple) if isinstance(triple, Sequence) else () for triple in entries]
    for entry, triple in zip(entries, checked, strict=True):
        if len(triple) != 3 or not all(value is None or (isinstance(value, int) and value >= 0) for value in triple):
            raise InputError(f"entry {entry!r}: expected (depth, position or None, dimension), non-negative integers")
        if triple[0] is None or triple[2] is None:
            raise InputError(f"entry {entry!r}: depth and dimension cannot be None")
    if not checked or len(set(checked)) != len(checked):
        raise InputError("entries: expected at least one, all different")
    return tuple(checked)


def check_dim(dim: int, hidden: Tensor) -> None:
    """Raises `InputError` for a dimension that the stream does not have."""
    if dim >= hidden.shape[-1]:
        raise InputError(f"dimension {dim} does not exist: the residual stream has 0 to {hidden.shape[-1] - 1}")
