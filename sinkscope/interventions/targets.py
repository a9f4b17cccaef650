"""Which keys an intervention changes, and for which queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from sinkscope.attention import TokenAxis, Visibility
from sinkscope.errors import InputError
from sinkscope.interventions.intervention import whole
from sinkscope.sinks import EPSILON, Measured, Tokens, parse

AFTER = 8  # queries after a sink that keep it: without it they would make the next token the sink
NEVER = np.iinfo(np.int64).max  # t ≥ NEVER holds for no query, so no second mask is needed
MASKED = -9e3  # an addend at or below this hides a score


@dataclass(frozen=True, eq=False)
class Targets:
    """Keys, each with the first query for which it is changed: queries t ≥ first[row, k], and t > k.

    `first` (row or 1, token), int64: positions in the document of the key, `NEVER` for keys that stay unchanged. Rows
    are those of the model's inputs; one row applies to all.
    """

    first: Int[np.ndarray, "row token"]

    @classmethod
    def behind(cls, positions: Sequence[int], after: int = AFTER) -> Targets:
        """These positions of every row, for queries from `after` tokens after each on."""
        first = np.full((1, max(positions) + 1), NEVER)
        first[0, list(positions)] = np.asarray(positions) + after
        return cls(first)

    @classmethod
    def of(cls, on: Any, after: int = AFTER) -> Targets:
        """From targets, positions, or the `Tokens` of a choice (in any layer and head).

        Raises `InputError` for tokens of packed documents that differ between texts.
        """
        if isinstance(on, Targets):
            return on
        if isinstance(on, Tokens):
            return cls._of_tokens(on, after)
        return cls.behind(whole("on", on), after)

    @classmethod
    def _of_tokens(cls, tokens: Tokens, after: int) -> Targets:
        if tokens.rows is None:
            return cls.behind(whole("on", tokens.positions), after)
        if bool((tokens.rows.document > 0).any()):
            raise InputError("tokens of packed documents differ between texts: choose them by position")
        return cls(np.where(tokens.any_head() & tokens.rows.real, tokens.rows.order + after, NEVER).astype(np.int64))

    @property
    def positions(self) -> tuple[int, ...]:
        """Positions that are a target in any row."""
        return tuple(int(p) for p in np.flatnonzero((self.first < NEVER).any(0)))

    @property
    def rows_agree(self) -> bool:
        """Whether all rows have the same targets."""
        return bool((self.first == self.first[:1]).all())

    def part(self, rows: slice) -> Targets:
        """Those of some rows; one row applies to all."""
        return self if len(self.first) == 1 else Targets(self.first[rows])

    def check_rows(self, batch: int) -> None:
        """Raises `InputError` if a model is called with other rows."""
        if len(self.first) not in (1, batch):
            raise InputError(f"targets of {len(self.first)} rows: the model was called with {batch}")

    def pairs(self) -> tuple[tuple[int, int], ...]:
        """(key, first query) of targets that all rows share. Raises `InputError` if rows differ."""
        if not self.rows_agree:
            raise InputError(
                "the tokens have other positions in other texts, so constants of a position of other texts do not "
                "apply to them: choose by position (positions:0, first:1, measured by position)"
            )
        return tuple((int(k), int(self.first[0, k])) for k in np.flatnonzero(self.first[0] < NEVER))

    def starts(self, key: Places) -> Int[Tensor, "_ key"]:
        """The first query for which each key is changed, `NEVER` for none."""
        first = torch.as_tensor(self.first, device=key.position.device)
        # Clamped for `gather` alone: padding on the left is negative. What lies outside is set to NEVER below.
        columns = key.position.clamp(0, first.shape[1] - 1)
        rows = max(len(first), len(columns))
        starts = first.expand(rows, -1).gather(1, columns.expand(rows, -1))
        return starts.masked_fill(~key.real | (key.position >= first.shape[1]), NEVER)

    def all_pairs(self) -> set[tuple[int, int]]:
        """(key, first query) of the targets of any row."""
        return {(int(k), int(self.first[row, k])) for row, k in np.argwhere(self.first < NEVER)}

    def hit(self, query: Places, key: Places) -> Bool[Tensor, "_ query key"]:
        """Which keys are changed for which queries."""
        starts = self.starts(key)
        query_position, key_position = query.position[:, :, None], key.position[:, None, :]
        together = query.document[:, :, None] == key.document[:, None, :]
        return (
            (query_position >= starts[:, None, :]) & (query_position > key_position) & together & query.real[:, :, None]
        )

    def asks(self, query: Places) -> Bool[Tensor, "_ query"]:
        """Which queries come late enough for some target, whether or not they see it."""
        first = torch.as_tensor(self.first.min(-1, keepdims=True), device=query.position.device)
        return (query.position >= first) & query.real

    def describe(self) -> list[Any]:
        """(key, first query) of each row, or once if all rows agree."""
        rows = self.first[:1] if self.rows_agree else self.first
        pairs = [[(int(k), int(row[k])) for k in np.flatnonzero(row < NEVER)] for row in rows]
        return pairs[0] if self.rows_agree else pairs


def acted_on(on: Any, epsilon: float = EPSILON) -> Any:
    """What `on` says: a choice of tokens, its words, or what is chosen already; None for the measured sinks.

    Raises `InputError` for no tokens.
    """
    choice = parse(on) if isinstance(on, str) else Measured(epsilon) if on is None else on
    if choice is None:
        raise InputError("on = 'none': an intervention acts on some tokens")
    return choice


def check_after(after: Any) -> None:
    """Raises `InputError` for anything but a positive integer."""
    if not isinstance(after, int) or isinstance(after, bool) or after < 1:
        raise InputError(f"after = {after}: expected a positive integer, since a token keeps its own key")


@dataclass(frozen=True, eq=False)
class Places:
    """Where columns are: the position in their document, the document's number, whether they are real tokens."""

    position: Int[Tensor, "batch token"]
    document: Int[Tensor, "batch token"]
    real: Bool[Tensor, "batch token"]

    @classmethod
    def of(cls, tokens: TokenAxis, starts: Bool[Tensor, "_ token"] | None = None) -> Places:
        """The columns of rows; `starts`: those that begin a document, None if each row is one."""
        order = tokens.order
        real = torch.ones_like(order, dtype=torch.bool) if tokens.valid is None else tokens.valid
        if starts is None:
            return cls(order, torch.zeros_like(order), real)
        order, starts, real = torch.broadcast_tensors(order, starts, real)
        # Order increases, so the running maximum over starts is where the current document began.
        begun = torch.where(starts & real, order, 0).cummax(-1).values
        return cls(order - begun, (starts & real).long().cumsum(-1), real)

    def part(self, columns: slice) -> Places:
        return Places(self.position[:, columns], self.document[:, columns], self.real[:, columns])


def document_starts(mask: Any, queries: int, keys: int, changed: bool = False) -> Bool[Tensor, "_ token"] | None:
    """Columns that do not see the previous one in the mask of an attention layer: documents begin there.

    `mask`: as the layer gets it, a `Visibility`, (batch, heads, query, key), or None. Returns None if it shows nothing:
    in a cached step, and if each column sees the previous one (padding begins no document; a row's first token does).
    Raises `InputError` if a document would begin in a mask that another intervention `changed`.
    """
    # The mask of a cached step lacks the rows of earlier queries.
    if queries != keys or queries < 2:
        return None
    if isinstance(mask, Visibility):
        visible = mask.dense()
    elif isinstance(mask, Tensor) and mask.ndim == 4 and mask.shape[2] in (1, queries):
        # A static cache's mask covers empty places too; a mask of padding has one row for all queries.
        visible = mask[..., :keys].expand(-1, -1, queries, -1)
        visible = visible if visible.dtype == torch.bool else visible > MASKED
    else:
        return None
    # (batch, query − 1): whether token t sees token t − 1, in any head, since some heads may see less.
    before = visible.any(1).diagonal(-1, 1, 2)
    if bool(before.all()) or not bool(before.any()):  # no documents, or queries that only see themselves
        return None
    if changed:
        raise InputError(
            "another intervention hides a token from the next one, so the mask does not show where documents "
            "begin: hide it from later queries only (HideSink with after of 2 or more), or change one thing at a time"
        )
    return torch.nn.functional.pad(~before, (1, 0), value=True)  # the first token begins one
