"""A host's softcap as something added to scores."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.attention import dot_product


@dataclass(frozen=True, eq=False)
class Softcap:
    """c · tanh(s / c) − s with s = scaling · q·k: added to s, it leaves the capped score. Slots are not capped.

    In fp32 at least. Source: Gemma Team 2024 (2408.00118), section 2.
    """

    query: Float[Tensor, "batch heads query dim"]
    key: Float[Tensor, "batch kv_heads key dim"]
    scaling: float
    cap: float

    def rows(self, rows: slice) -> Float[Tensor, "batch heads query key"]:
        """The bias of the queries in `rows` on all keys."""
        wide = torch.promote_types(self.query.dtype, torch.float32)
        scores = dot_product(self.query[:, :, rows].to(wide), self.key.to(wide), self.scaling)
        return self.cap * torch.tanh(scores / self.cap) - scores
