"""What a mask may know about the tokens of a batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Tokens:
    """The tokens on one side of an attention map.

    `order`: index of the token in its own row, counted in real tokens from 0 (it orders tokens; rotary positions may
    differ), rising from column to column; left padding stands before 0. `document`: number of the document the token
    belongs to. `valid`: False for padding; None means that every token is real. The batch dimension may be 1 where all
    rows agree.
    """

    order: Int[Tensor, "#batch tokens"]
    document: Int[Tensor, "#batch tokens"] | None = None
    valid: Bool[Tensor, "#batch tokens"] | None = None

    @classmethod
    def plain(cls, length: int, *, start: int = 0, device: torch.device | None = None) -> Tokens:
        """`length` real tokens, the first with index `start`."""
        return cls(torch.arange(start, start + length, device=device)[None])

    @classmethod
    def padded(cls, attention_mask: Tensor, document: Int[Tensor, "batch tokens"] | None = None) -> Tokens:
        """From a transformers attention mask: 1 for real tokens, 0 for padding, on either side."""
        real = attention_mask.bool()
        # Counting real tokens makes a padded row equal to the same row without padding, on whichever side it is padded.
        return cls(real.long().cumsum(-1) - 1, document, real)

    @property
    def count(self) -> int:
        return self.order.shape[-1]

    def within_documents(self, apart: Bool[Tensor, "#batch tokens"] | None = None) -> Int[Tensor, "#batch tokens"]:
        """Index of each real token among those of its document, from 0; the document need not be contiguous.

        Padding, and tokens marked in `apart`, count in no document; their own indices mean nothing.
        """
        if self.document is None:
            return self.order
        order, document = torch.broadcast_tensors(self.order, self.document)
        for outside in (apart, None if self.valid is None else ~self.valid):
            if outside is not None:
                # A number that no document has, so that tokens outside never advance a document's count.
                document = torch.where(outside, self.document.min() - 1, document)
        # Stable, so that tokens of one document keep their order; O(T log T) instead of a T × T comparison.
        grouped, index = torch.sort(document, dim=-1, stable=True)
        count = torch.arange(self.count, device=order.device).expand_as(index)
        starts = torch.ones_like(grouped, dtype=torch.bool)
        starts[:, 1:] = grouped[:, 1:] != grouped[:, :-1]
        first = count.masked_fill(~starts, 0).cummax(-1).values
        return torch.empty_like(index).scatter(-1, index, count - first)

    def part(self, columns: slice, samples: slice = slice(None)) -> Tokens:
        """The tokens of a slice, of some of the samples; what all samples share stays shared."""
        order, *further = (
            None if known is None else known[samples if len(known) > 1 else slice(None), columns]
            for known in (self.order, self.document, self.valid)
        )
        assert order is not None
        return Tokens(order, *further)
