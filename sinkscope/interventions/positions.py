"""Interventions on tables of absolute positions (Gu et al. 2025, Table 7)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.errors import InputError
from sinkscope.hooks import position_embedding
from sinkscope.interventions.intervention import Intervention, whole
from sinkscope.interventions.residual import other_positions


@dataclass(frozen=True)
class SwapPositions(Intervention):
    """P_a ↔ P_b: the tokens at `a` and `b` get each other's position embedding.

    Where the sink goes with the embedding, position embeddings make it (Gu et al. 2025, Table 7). For tables of
    absolute positions; the table's rows are changed, so it holds for all inputs, and images count their special tokens.
    Control: two other positions. Raises `InputError` for positions outside the table, and `UnsupportedModelError` for
    models without one, such as those with rotary positions.
    """

    a: int
    b: int

    def __post_init__(self) -> None:
        whole("positions", (self.a, self.b))

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        rows = _rows(model, self.positions_named, stack)
        rows[[self.a, self.b]] = rows[[self.b, self.a]]

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> SwapPositions:
        return SwapPositions(*_others(generator, model, inputs, self.positions_named))

    @property
    def positions_named(self) -> tuple[int, ...]:
        return self.a, self.b


@dataclass(frozen=True)
class ReplacePosition(Intervention):
    """P_position = P_by: the token at `position` gets the embedding of `by`, which keeps its own.

    Otherwise as `SwapPositions`. Control: another position replaced by yet another. Source: Gu et al. 2025, Table 7.
    """

    position: int
    by: int

    def __post_init__(self) -> None:
        whole("positions", (self.position, self.by))

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        rows = _rows(model, (self.position, self.by), stack)
        rows[self.position] = rows[self.by]

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> ReplacePosition:
        return ReplacePosition(*_others(generator, model, inputs, (self.position, self.by)))

    @property
    def positions_named(self) -> tuple[int, ...]:
        return (self.position,)


def _others(
    generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any], taken: tuple[int, ...]
) -> tuple[int, ...]:
    return other_positions(generator, model, inputs, taken, stop=len(position_embedding(model).rows))


def _rows(model: nn.Module, positions: tuple[int, ...], stack: ExitStack) -> Tensor:
    """The table's rows to write to; `stack` puts back what they were."""
    rows = position_embedding(model).rows
    if (missing := max(positions)) >= len(rows):
        raise InputError(f"position {missing} has no embedding: the table holds positions 0 to {len(rows) - 1}")
    before = rows.clone()
    stack.callback(rows.copy_, before)
    return rows
