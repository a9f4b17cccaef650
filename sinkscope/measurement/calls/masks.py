"""Masks of attention calls, in the forms in which layers receive them. Nothing here writes out a T×T tensor.

Columns are given by a slice, or by an index (batch, n) that may differ between samples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_mask

from sinkscope.attention import Visibility

Columns = slice | Tensor  # Int[Tensor, "batch n"]
HIDDEN = -9e3  # threshold for masked scores: families add −10,000 (−9,984 in bfloat16), the dtype's minimum, or −inf
KINDS = 4  # masks kept at once: the layers of a model alternate between full, windows, chunks


class VisibleKeys(ABC):
    """The mask of one attention call; queries are rows, keys are columns."""

    keys: int

    @abstractmethod
    def extent(self, samples: slice, rows: slice) -> slice:
        """A range of columns outside of which these rows see nothing."""

    @property
    def only_hides(self) -> bool:
        """Whether the mask adds nothing to the scores of visible keys."""
        return True

    def restrict(
        self, scores: Float[Tensor, "batch heads query key"], samples: slice, rows: slice, columns: Columns
    ) -> None:
        """Set scores of invisible keys to −inf, and add what the mask adds, in place."""
        self.hide(scores, samples, rows, columns)

    def hide(
        self, scores: Float[Tensor, "batch heads query key"], samples: slice, rows: slice, columns: Columns
    ) -> None:
        """Set scores of invisible keys to −inf, in place."""
        scores.masked_fill_(~self.visible(samples, rows, columns).to(scores.device), -torch.inf)

    def blank(
        self, values: Float[Tensor, "batch heads query key"], samples: slice, rows: slice, columns: Columns
    ) -> None:
        """Set values at invisible keys to 0, in place."""
        # Filled, not multiplied: hidden values may be infinite or NaN.
        values.masked_fill_(~self.visible(samples, rows, columns).to(values.device), 0.0)

    @abstractmethod
    def visible(self, samples: slice, rows: slice, columns: Columns) -> Bool[Tensor, "_ _ query key"]:
        """True where the query may attend; broadcasts over batch and heads."""

    @property
    def keys_seen(self) -> Bool[Tensor, "_ key"] | None:
        """Keys that some query may attend to, the layer's real tokens; None if that is every key."""
        return None

    def looks_ahead(self, start: int, real: Bool[Tensor, "batch key"] | None) -> bool | None:
        """Whether queries see later keys: False if none does, True if each sees the next real key.

        None if some do (a bidirectional prefix, documents) or the mask leaves it open. `start`: index of the first
        query among the keys.
        """
        return None

    def shows(self, hidden: Bool[Tensor, "batch key"], start: int) -> bool:
        """Whether a query of a real token may attend to a key that is `hidden`; queries are keys `start` …"""
        return False


@dataclass(frozen=True, eq=False)
class Rule(VisibleKeys):
    """A mask given by a rule: everything is visible, or what `causal`, `window` and `padding` leave.

    `start` is the index of the first query among the keys; `padding` is True for real keys.
    """

    keys: int
    causal: bool
    start: int = 0
    window: int | None = None
    padding: Bool[Tensor, "batch keys"] | None = None

    @property
    def keys_seen(self) -> Bool[Tensor, "_ key"] | None:
        return self.padding

    def looks_ahead(self, start: int, real: Bool[Tensor, "batch key"] | None) -> bool | None:
        return not self.causal

    def shows(self, hidden: Bool[Tensor, "batch key"], start: int) -> bool:
        seen = hidden if self.padding is None else hidden & self.padding.to(hidden.device)
        # A hidden key counts only if a real query of this call is at or after it (anywhere, if not causal).
        queries = ~hidden
        queries[:, :start] = False
        before = (queries.flip(-1).cumsum(-1).flip(-1) > 0) if self.causal else queries.any(-1, keepdim=True)
        return bool((seen & before).any())

    @property
    def is_triangle(self) -> bool:
        """True when the only rule is the lower triangle (or nothing at all)."""
        return self.window is None and self.padding is None

    def extent(self, samples: slice, rows: slice) -> slice:
        first, last = self.start + rows.start, self.start + rows.stop - 1
        start = 0 if self.window is None else first - self.window + 1
        # A window without causality reaches as far ahead as back: |query − key| < window.
        stop = last + 1 if self.causal else self.keys if self.window is None else last + self.window
        return slice(max(0, start), min(self.keys, stop))

    def hide(self, scores: Tensor, samples: slice, rows: slice, columns: Columns) -> None:
        if not self.is_triangle:
            super().hide(scores, samples, rows, columns)
        elif self.causal and isinstance(columns, slice):
            right, diagonal = self._right(scores, rows, columns)
            # One (query, key) mask for all samples and heads: row i does not see column j where j − i > diagonal.
            later = torch.ones(right.shape[-2:], dtype=torch.bool, device=scores.device)
            right.masked_fill_(later.triu_(diagonal + 1), -torch.inf)
        elif self.causal:  # columns chosen by index have no diagonal
            super().hide(scores, samples, rows, columns)

    def blank(self, values: Tensor, samples: slice, rows: slice, columns: Columns) -> None:
        if not self.is_triangle:
            super().blank(values, samples, rows, columns)
        elif self.causal and isinstance(columns, slice):
            right, diagonal = self._right(values, rows, columns)
            for sample in right.unbind():  # torch copies the whole batch otherwise, which takes five times as long
                sample.tril_(diagonal)
        elif self.causal:
            super().blank(values, samples, rows, columns)

    def _right(self, values: Tensor, rows: slice, columns: slice) -> tuple[Tensor, int]:
        """The columns after the first row's own (before them nothing is hidden), and the last visible diagonal."""
        # Row i sees the keys up to first + i, which is the diagonal first − edge if columns count from `edge`.
        first = self.start + rows.start
        edge = min(max(first + 1, columns.start), columns.stop)
        return values[..., edge - columns.start :], first - edge

    def visible(self, samples: slice, rows: slice, columns: Columns) -> Bool[Tensor, "_ _ query key"]:
        device = (
            columns.device if isinstance(columns, Tensor) else self.padding.device if self.padding is not None else None
        )
        # (1, 1, query, 1) − (batch | 1, 1, 1, key)
        query = torch.arange(rows.start, rows.stop, device=device)[None, None, :, None] + self.start
        key = columns if isinstance(columns, Tensor) else torch.arange(columns.start, columns.stop, device=device)[None]
        distance = query - key[:, None, None, :]
        allowed = distance >= 0 if self.causal else torch.ones_like(distance, dtype=torch.bool)
        if self.window is not None:
            allowed = allowed & (distance.abs() < self.window)
        if self.padding is not None:
            allowed = allowed & take(self.padding[samples, None, None, :], columns)
        return allowed


@dataclass(frozen=True, eq=False)
class DenseMask(VisibleKeys):
    """A written 4-D mask as the model made it: booleans (True = may attend), or numbers that are added to scores.

    Numbers at or below `HIDDEN` mean "masked", so that a row of padding stays empty instead of uniform.
    """

    mask: Tensor  # (batch | 1, heads | 1, query, key)
    _later: dict[int, bool] = field(default_factory=dict, repr=False)  # by the index of the first query
    _shown: dict[int, bool] = field(default_factory=dict, repr=False)  # likewise; in a pass one set of keys is hidden

    @property
    def keys(self) -> int:  # type: ignore[override]
        return self.mask.shape[-1]

    def extent(self, samples: slice, rows: slice) -> slice:
        return _extent(self.visible(samples, rows, slice(0, self.keys)))

    @property
    def only_hides(self) -> bool:
        return self.mask.dtype == torch.bool

    def restrict(self, scores: Tensor, samples: slice, rows: slice, columns: Columns) -> None:
        if not self.only_hides:
            scores.add_(self._part(samples, rows, columns))
        self.hide(scores, samples, rows, columns)

    def visible(self, samples: slice, rows: slice, columns: Columns) -> Bool[Tensor, "_ _ query key"]:
        part = self._part(samples, rows, columns)
        return part if part.dtype == torch.bool else part > HIDDEN

    @cached_property
    def keys_seen(self) -> Bool[Tensor, "_ key"] | None:
        seen = self._whole.any(2).any(1)
        return None if bool(seen.all()) else seen

    def looks_ahead(self, start: int, real: Bool[Tensor, "batch key"] | None) -> bool | None:
        if not self._sees_later(start):
            return False
        # (batch, heads, query): whether a query sees the key after its own; the last query has none.
        following = self._whole.diagonal(start + 1, 2, 3)
        if real is None:
            return True if bool(following.all()) else None
        pairs = real[:, start:-1] & real[:, start + 1 :]
        return True if bool((following | ~pairs[:, None].to(following.device)).all()) else None

    def sees_itself(self, real: Bool[Tensor, "batch key"] | None) -> bool:
        """Whether every query sees the key of its own index if that is `real`."""
        diagonal = self._whole.diagonal(0, 2, 3)
        return bool((diagonal if real is None else diagonal | ~real[:, None].to(diagonal.device)).all())

    def shows(self, hidden: Bool[Tensor, "batch key"], start: int) -> bool:
        if start not in self._shown:
            queries = ~hidden[:, start : start + self.mask.shape[2]]
            shown = self._whole & hidden[:, None, None, :] & queries[:, None, :, None]
            self._shown[start] = bool(shown.any())
        return self._shown[start]

    @property
    def _whole(self) -> Bool[Tensor, "_ _ query key"]:
        return self.visible(slice(None), slice(None), slice(0, self.keys))

    def _sees_later(self, start: int) -> bool:
        if start not in self._later:
            self._later[start] = bool(self._whole.triu(start + 1).any())
        return self._later[start]

    def _part(self, samples: slice, rows: slice, columns: Columns) -> Tensor:
        mask = self.mask if self.mask.shape[0] == 1 else self.mask[samples]
        return take(mask[:, :, rows], columns)


@dataclass(frozen=True, eq=False)
class Bound(VisibleKeys):
    """A `Visibility`, the mask value of the lab model, written out a few rows at a time."""

    visibility: Visibility

    @property
    def keys(self) -> int:  # type: ignore[override]
        return self.visibility.key.count

    def extent(self, samples: slice, rows: slice) -> slice:
        return _extent(self.visible(samples, rows, slice(0, self.keys)))

    def visible(self, samples: slice, rows: slice, columns: Columns) -> Bool[Tensor, "_ _ query key"]:
        dense = self.visibility.dense(rows)
        return take(dense if dense.shape[0] == 1 else dense[samples], columns)


class WrittenMasks:
    """The last written masks of a pass: layers share them, and each is read once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], tuple[Tensor | BlockMask, DenseMask]] = {}

    def of(self, mask: Tensor | BlockMask, queries: int, keys: int) -> DenseMask:
        """The mask as its layer uses it: rows for each query, columns for `keys`.

        A `BlockMask` of flex attention is a function of indices. It is written out as booleans, as SDPA's mask of the
        same model would be, once for all layers that share it.
        """
        # The entry holds the mask itself, so that its id cannot be reused while the entry lives.
        place = id(mask), queries, keys
        if place not in self._known:
            while len(self._known) >= KINDS:
                self._known.pop(next(iter(self._known)))
            if isinstance(mask, Tensor):
                # A static cache's mask also covers the empty places; a mask of one row applies to every query.
                written = mask[..., :keys].expand(-1, -1, queries, -1)
            else:
                batch, heads, device = mask.shape[0], mask.shape[1], mask.kv_num_blocks.device
                written = create_mask(mask.mask_mod, batch, heads, queries, keys, device)
            self._known[place] = mask, DenseMask(written)
        return self._known[place][1]


def take(tensor: Tensor, columns: Columns) -> Tensor:
    """Columns of (batch | 1, a, b, key): a slice, or per-sample indices (batch, n)."""
    if isinstance(columns, slice):
        return tensor[..., columns]
    # (batch, a, b, n): a sample's columns are the same for its heads and queries.
    index: Int[Tensor, "batch 1 1 n"] = columns[:, None, None, :]
    return tensor.expand(len(columns), -1, -1, -1).gather(-1, index.expand(-1, *tensor.shape[1:3], -1))


def _extent(visible: Bool[Tensor, "_ _ query key"]) -> slice:
    seen = visible.flatten(0, 2).any(0).nonzero()
    return slice(int(seen[0]), int(seen[-1]) + 1) if len(seen) else slice(0, 0)
