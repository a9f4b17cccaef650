"""What a mask may know about the tokens of a batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Tokens:
    """The tokens on one side of an attention map.

    `order`: place of the token in its own row, counted in real tokens from 0 (it orders tokens; rotary positions may
    differ); left padding stands before 0. `document`: number of the document the token belongs to. `valid`: False for
    padding; None means that every token is real. The batch dimension may be 1 where all rows agree.
    """

    order: Int[Tensor, "#batch tokens"]
    document: Int[Tensor, "#batch tokens"] | None = None
    valid: Bool[Tensor, "#batch tokens"] | None = None

    @classmethod
    def plain(cls, length: int, *, start: int = 0, device: torch.device | None = None) -> Tokens:
        """`length` real tokens, the first at place `start`."""
        return cls(torch.arange(start, start + length, device=device)[None])

    @classmethod
    def padded(cls, attention_mask: Tensor, document: Int[Tensor, "batch tokens"] | None = None) -> Tokens:
        """From a transformers attention mask: 1 for real tokens, 0 for padding, on either side."""
        real = attention_mask.bool()
        return cls(real.long().cumsum(-1) - 1, document, real)

    @property
    def count(self) -> int:
        return self.order.shape[-1]

    def within_documents(self) -> Int[Tensor, "#batch tokens"]:
        """Place of each token in its own document, counted as `order` is; a document need not be in one piece."""
        if self.document is None:
            return self.order
        order, document = torch.broadcast_tensors(self.order, self.document)
        grouped, index = torch.sort(document, dim=-1, stable=True)
        starts = torch.zeros_like(grouped)
        starts[:, 1:] = grouped[:, 1:] != grouped[:, :-1]
        group = torch.empty_like(grouped).scatter(-1, index, starts.cumsum(-1))
        beyond = torch.iinfo(order.dtype).max
        real = order if self.valid is None else order.masked_fill(~self.valid, beyond)
        first = torch.full_like(order, beyond).scatter_reduce(-1, group, real, "amin")
        return order - first.gather(-1, group)

    def part(self, rows: slice) -> Tokens:
        """The tokens of a slice."""
        return Tokens(
            self.order[:, rows],
            None if self.document is None else self.document[:, rows],
            None if self.valid is None else self.valid[:, rows],
        )
