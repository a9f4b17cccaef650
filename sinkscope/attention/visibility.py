"""A mask bound to the tokens at hand: what the lab model hands to attention instead of a T×T tensor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinkscope.attention.masks import Causal, Full, Mask
from sinkscope.attention.tokens import Tokens
from sinkscope.errors import InputError


@dataclass(frozen=True, eq=False)
class Visibility:
    """`mask` applied to `query` tokens and `key` tokens; padding keys are never visible.

    A padding query sees nothing. A query that sees no token sees no slot either: its weights and output are zero.
    """

    mask: Mask
    query: Tokens
    key: Tokens

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

        `attention_mask` and `documents` describe all keys.
        """
        if queries > keys and not isinstance(mask, Full):
            raise InputError(f"{queries} queries for {keys} keys: queries are the last of the keys, so at most as many")
        if attention_mask is not None:
            key = Tokens.padded(attention_mask, documents)
        else:
            key = Tokens(torch.arange(keys, device=device)[None], documents)
        if queries > keys:
            return cls(mask, Tokens.plain(queries, device=device), key)
        return cls(mask, key if queries == keys else key.part(slice(keys - queries, keys)), key)

    @property
    def is_causal_square(self) -> bool:
        """True when this is exactly the lower triangle: no padding, no documents' borders, no cache."""
        return isinstance(self.mask, Causal) and self.query is self.key and self.key.valid is None

    @property
    def is_full(self) -> bool:
        """True when every query sees every key."""
        return isinstance(self.mask, Full) and self.key.valid is None and self.query.valid is None

    def dense(self, rows: slice | None = None) -> Bool[Tensor, "batch 1 query key"]:
        """The mask written out for the queries in `rows` (all of them by default); True = may attend."""
        query = self.query if rows is None else self.query.part(rows)
        allowed = self.mask.visible(query, self.key)
        if self.key.valid is not None:
            allowed = allowed & self.key.valid[:, None, :]
        if query.valid is not None:
            allowed = allowed & query.valid[:, :, None]
        return allowed[:, None]

    def counted(self) -> Float[Tensor, "#batch 1 query 1"]:
        """How many tokens each query sees, at least 1; in O(T) memory."""
        queries, step = self.query.count, 256
        parts = [slice(start, min(queries, start + step)) for start in range(0, queries, step)]
        counts = [self.upto(self.reach(part)).dense(part).sum(-1, keepdim=True) for part in parts]
        return torch.cat(counts, 2).clamp(min=1).float()

    def reach(self, rows: slice) -> slice:
        """The keys that queries in `rows` can possibly see; every key outside is hidden from all of them."""
        if not self.is_causal_square:
            return slice(0, self.key.count)
        return slice(0, min(rows.stop, self.key.count))

    def upto(self, keys: slice) -> Visibility:
        """The same queries on a part of the keys."""
        return self if keys == slice(0, self.key.count) else Visibility(self.mask, self.query, self.key.part(keys))
