"""From queries and keys to scores."""

from __future__ import annotations

from typing import Annotated, Literal

from jaxtyping import Float
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from sinkscope.attention.pieces import STRICT


@dataclass(frozen=True, config=STRICT)
class DotProduct:
    """s_tk = scaling · q_t·k_k, on queries and keys after rotation. Source: Vaswani et al. 2017."""

    kind: Literal["dot_product"] = "dot_product"

    def scores(
        self,
        query: Float[Tensor, "batch heads query dim"],
        key: Float[Tensor, "batch kv_heads key dim"],
        scaling: float,
    ) -> Float[Tensor, "batch heads query key"]:
        """Grouped queries meet the key head of their group without a copy of the keys."""
        batch, heads, queries, dim = query.shape
        kv_heads, keys = key.shape[1:3]
        grouped = query.reshape(batch, kv_heads, heads // kv_heads * queries, dim)
        return (scaling * grouped @ key.transpose(-1, -2)).view(batch, heads, queries, keys)


Similarity = Annotated[DotProduct, Field()]
