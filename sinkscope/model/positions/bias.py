"""Score biases that depend on how far apart two tokens stand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class DistanceBias:
    """b[q, k] = f(position(q) − position(k)), a few rows at a time: no T×T tensor is ever written out.

    `of` maps distances (batch, rows, key) to biases (batch, heads, rows, key) in fp32; a batch of one, and one head
    where all agree, broadcast. The operation adds them to the scaled scores.
    """

    query: Int[Tensor, "#batch query"]
    key: Int[Tensor, "#batch key"]
    of: Callable[[Tensor], Tensor]

    def rows(self, rows: slice) -> Float[Tensor, "#batch #heads rows key"]:
        """The biases of the queries in `rows` on every key."""
        return self.of(self.query[:, rows, None] - self.key[:, None, :])
