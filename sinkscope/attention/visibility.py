"""A mask bound to tokens: what the lab model passes to attention instead of a T×T tensor."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinkscope.attention.masks import Causal, Full, Mask, Span, TokenAxis, Window, conjuncts
from sinkscope.errors import InputError


@dataclass(frozen=True, eq=False)
class Visibility:
    """`mask` applied to `query` tokens and `key` tokens; padding keys are never visible.

    A padding query sees nothing. A query that sees no token sees no slot either: its weights and output are zero.
    `sinks`: how many of the keys are sink tokens, which stand before the first token of the text.
    """

    mask: Mask
    query: TokenAxis
    key: TokenAxis
    sinks: int = field(default=0, kw_only=True)

    @classmethod
    def of(
        cls,
        mask: Mask,
        queries: int,
        keys: int,
        *,
        attention_mask: Tensor | None = None,
        documents: Int[Tensor, "#batch keys"] | None = None,
        device: torch.device | None = None,
    ) -> Visibility:
        """Bind `mask` to the last `queries` of `keys` tokens, which is how cached decoding and chunked prefill align.

        Args:
            mask: Which keys a query sees, by place and document.
            queries, keys: Numbers of tokens.
            attention_mask: (batch, keys), 0 for padding; None: no padding.
            documents: Number of each key's document; None: one document per row.
            device: Where places are counted if there is no `attention_mask`.
        """
        if queries > keys and not isinstance(mask, Full):
            raise InputError(
                f"{queries} queries for {keys} keys: queries are the last of the keys, so at most as many are possible"
            )
        if attention_mask is not None:
            key = TokenAxis.padded(attention_mask, documents)
        else:
            key = TokenAxis(torch.arange(keys, device=device)[None], documents)
        if queries > keys:  # only `Full` reaches this, which never compares the two orders
            return cls(mask, TokenAxis.plain(queries, device=device), key)
        # One object on both sides marks a square: `is_causal_square` and `_band` compare by identity.
        return cls(mask, key if queries == keys else key.part(slice(keys - queries, keys)), key)

    @property
    def rule(self) -> Visibility | None:
        """The mask by which the tokens of a row count; None for a boolean tensor, which does not show it."""
        return self

    @property
    def is_causal_square(self) -> bool:
        """True if this is exactly the lower triangle: no padding, documents or cache."""
        return isinstance(self.mask, Causal) and self.query is self.key and self.key.valid is None

    @property
    def is_full(self) -> bool:
        """True when every query sees every key."""
        return isinstance(self.mask, Full) and self.key.valid is None and self.query.valid is None

    def dense(self, rows: slice | None = None) -> Bool[Tensor, "batch _ query key"]:
        """The mask written out for the queries in `rows` (all of them by default); True = may attend."""
        # Booleans, not a float mask: a row in which all is hidden would be uniform 1/T under finfo.min and NaN under
        # −inf, and both would enter the statistics. The normalizers make such rows zero.
        query = self.query if rows is None else self.query.part(rows)
        allowed = self.mask.visible(query, self.key)  # (#batch, query, key)
        if self.key.valid is not None:
            allowed = allowed & self.key.valid[:, None, :]
        if query.valid is not None:
            allowed = allowed & query.valid[:, :, None]
        return allowed[:, None]  # (#batch, 1, query, key): all heads see the same

    def narrowed(self, mask: Mask) -> Visibility:
        """The same tokens under `mask` as well."""
        return replace(self, mask=self.mask & mask)

    def counted(self) -> Float[Tensor, "#batch _ query 1"]:
        """How many tokens each query sees, at least 1; in O(T) memory."""
        queries, step = self.query.count, 256  # in parts, since a sum over the whole mask would write T × T booleans
        parts = [slice(start, min(queries, start + step)) for start in range(0, queries, step)]
        counts = [self.upto(self.reach(part)).dense(part).sum(-1, keepdim=True) for part in parts]
        return torch.cat(counts, 2).clamp(min=1).float()  # at least 1: padding would divide by 0, or take log 0

    def reach(self, rows: slice) -> slice:
        """The keys that queries in `rows` can possibly see, at least one; every key outside is hidden from them all."""
        if type(self) is Visibility and self.is_causal_square:  # the usual case
            return slice(0, min(rows.stop, self.key.count))
        band = self._band()
        # A band is arithmetic on the slice. Spans read tensors, but also know documents, prefixes and padding.
        if (band is None or not band.whole) and (spans := self.spans) is not None:
            start, stop = int(spans[0][:, rows].amin()), int(spans[1][:, rows].amax())
            return slice(start, stop) if start < stop else slice(0, 1)  # a hidden key: an empty row has no maximum
        if band is None:
            return slice(0, self.key.count)
        # From the oldest key of the first query to the own key of the last: what makes windows cost O(T · size).
        return slice(max(0, rows.start - band.width + 1), min(rows.stop, self.key.count))

    def unmasked(self, rows: slice) -> slice:
        """Keys within reach that every query in `rows` sees, so that no mask need be written for them; may be empty."""
        reach, band = self.reach(rows), self._band()
        if self.is_full:
            return reach
        # From the oldest key of the last query to the own key of the first: what all rows have in common.
        start, stop = max(0, rows.stop - band.width) if band else 0, rows.start + 1
        return slice(start, stop) if band and band.whole and start < stop else slice(reach.stop, reach.stop)

    @property
    def spans(self) -> Span | None:
        """Per query the first column that it may see, and the one after the last; empty for padding.

        None if only `dense` knows, or if reading numbers from a tensor would synchronize a GPU or break a graph.
        """
        if torch.compiler.is_compiling() or type(self) is not Visibility or self.key.order.device.type != "cpu":
            return None
        return self._spans

    @cached_property
    def _spans(self) -> Span | None:
        order = self.key.order
        # Masks find spans by binary search, which on unsorted columns is wrong without an error.
        if not self.key.count or bool((order[:, 1:] < order[:, :-1]).any()):
            return None
        span = self.mask.span(self.query, self.key)
        if span is not None and (real := self.key.valid) is not None:  # padding is before or after the visible columns
            columns = torch.arange(self.key.count, device=order.device)
            first = columns.where(real, self.key.count).amin(-1, keepdim=True)
            last = columns.where(real, -1).amax(-1, keepdim=True)
            span = torch.maximum(span[0], first), torch.minimum(span[1], last + 1)
        if span is None or self.query.valid is None:
            return span
        awake = self.query.valid
        return span[0].where(awake, self.key.count), span[1].where(awake, 0)

    def _band(self) -> _Band | None:
        """The band below the diagonal with all visible keys, if queries are the keys and the mask is causal."""
        # By identity: only one object on both sides is known to be square; subclasses write masks of their own.
        if self.query is not self.key or type(self) is not Visibility:
            return None
        parts = conjuncts(self.mask)
        if not any(isinstance(part, Causal) for part in parts):
            return None
        plain = self.key.valid is None  # order then counts every column; padding inside a row would widen a window
        sizes = [part.size for part in parts if isinstance(part, Window) and plain]
        return _Band(min([self.key.count, *sizes]), plain and all(isinstance(part, Causal | Window) for part in parts))

    def upto(self, keys: slice) -> Visibility:
        """The same queries on a part of the keys."""
        return self if keys == slice(0, self.key.count) else Visibility(self.mask, self.query, self.key.part(keys))


@dataclass(frozen=True)
class _Band:
    """Queries see keys among the last `width` up to their own; `whole`: all of those."""

    width: int
    whole: bool


@dataclass(frozen=True, eq=False)
class Kept(Visibility):
    """A mask over the keys that a cache kept, which may differ between heads.

    `whole` is the mask over all keys; `columns` (batch, 1 or heads, kept) tells which of them each kept key is, −1
    where a head has none. A query sees those kept keys that the whole mask shows it.
    """

    whole: Visibility
    columns: Int[Tensor, "batch _ kept"]

    @classmethod
    def of_columns(cls, whole: Visibility, columns: Int[Tensor, "batch _ kept"]) -> Kept:
        """`whole` over the keys that `columns` name."""
        here = TokenAxis.plain(columns.shape[-1], device=columns.device)  # only a count; `dense` says what queries see
        return cls(whole.mask, whole.query, here, whole, columns)

    @property
    def rule(self) -> Visibility | None:
        return None

    @property
    def is_full(self) -> bool:
        return False

    def dense(self, rows: slice | None = None) -> Bool[Tensor, "batch _ query key"]:
        whole = self.whole.dense(rows)
        batch, heads, _ = self.columns.shape
        seen = whole.expand(batch, heads, -1, -1)
        # −1 is no index for `gather`: column 0 is read in its place, and hidden again below.
        index = self.columns.clamp(min=0)[:, :, None].expand(-1, -1, seen.shape[2], -1)
        return seen.gather(-1, index) & (self.columns >= 0)[:, :, None]

    def narrowed(self, mask: Mask) -> Kept:
        return self.of_columns(self.whole.narrowed(mask), self.columns)

    def upto(self, keys: slice) -> Kept:
        return self.of_columns(self.whole, self.columns[..., keys])

    def spread(self) -> Kept:
        """The same over all keys of the whole mask, hidden where they were not kept: (batch, heads, all keys)."""
        all_columns = torch.arange(self.whole.key.count, device=self.columns.device)
        return self.of_columns(self.whole, all_columns.where(held_columns(self.columns, len(all_columns)), -1))


def held_columns(columns: Int[Tensor, "batch heads kept"], total: int) -> Bool[Tensor, "batch heads {total}"]:
    """Which of `total` columns are among `columns`; −1 entries are ignored."""
    # Counted rather than assigned: a −1, clamped to column 0, must not overwrite a key that is held there.
    counts = columns.new_zeros(*columns.shape[:2], total)
    return counts.scatter_add_(-1, columns.clamp(min=0), (columns >= 0).to(counts.dtype)) > 0
