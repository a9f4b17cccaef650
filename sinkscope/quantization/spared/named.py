"""Tokens that are named: by their positions, as the first ones, or by their ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from sinkscope.errors import InputError
from sinkscope.model.columns import Columns
from sinkscope.quantization.spared.spared import Placed


@dataclass(frozen=True)
class Positions(Placed):
    """The tokens at these positions, counted in real tokens from 0: of each row, or of each packed document.

    Raises `InputError` for anything but different whole numbers from 0 on.
    """

    positions: Sequence[Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "positions", _numbers("positions", self.positions))

    def among(self, columns: Columns) -> Bool[Tensor, "batch position"]:
        chosen = torch.tensor(self.positions, device=columns.order.device)
        return torch.isin(columns.order, chosen) & columns.real


@dataclass(frozen=True)
class FirstTokens(Placed):
    """The first n tokens of each row, or of each packed document, whatever they are: the usual rule of thumb.

    Raises `InputError` for n below 1. Source: what Su & Yuan 2025 compare with as preserve-first-n.
    """

    n: int

    def __post_init__(self) -> None:
        if isinstance(self.n, bool) or not isinstance(self.n, int) or self.n < 1:
            raise InputError(f"FirstTokens({self.n!r}): expected a number of tokens of at least 1; to spare none: None")

    def among(self, columns: Columns) -> Bool[Tensor, "batch position"]:
        return (columns.order < self.n) & columns.real


@dataclass(frozen=True)
class Tokens(Placed):
    """Every token that is one of these ids, wherever it stands: a BOS, a delimiter.

    Raises `InputError` for anything but different whole numbers from 0 on, and for passes without token ids.
    """

    ids: Sequence[Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", _numbers("ids", self.ids))

    def among(self, columns: Columns) -> Bool[Tensor, "batch position"]:
        if columns.ids is None:
            raise InputError(
                f"Tokens({', '.join(map(str, self.ids))}): which tokens these are is not known without ids"
            )
        return torch.isin(columns.ids, torch.tensor(self.ids, device=columns.ids.device)) & columns.real


def _numbers(what: str, given: Any) -> tuple[int, ...]:
    found = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else ()
    if not found or any(isinstance(one, bool) or not isinstance(one, int) or one < 0 for one in found):
        raise InputError(f"{what} = {given!r}: expected whole numbers from 0 on, at least one")
    if len(set(found)) != len(found):
        raise InputError(f"{what} = {given!r}: expected different numbers")
    return found
