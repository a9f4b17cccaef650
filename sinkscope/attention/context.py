"""What an operation may read besides queries, keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from sinkscope.attention.visibility import Visibility


@runtime_checkable
class Bias(Protocol):
    """Something added to the scores after scaling, such as ALiBi or relative positions, given a few rows at a time."""

    def rows(self, rows: slice) -> Float[Tensor, "#batch #heads query key"]:
        """The bias of the queries in `rows` on all keys."""
        ...


@dataclass(frozen=True, eq=False)
class Context:
    """The surroundings of one call of an operation.

    `hidden`: the input of the attention block at the queries, for gates and input-dependent sink logits. `carried`:
    what key-side tokens store besides key and value, from `Operation.before_cache`. `bias`: added to the scores.
    """

    visibility: Visibility
    scaling: float
    hidden: Float[Tensor, "batch query width"] | None = None
    carried: Float[Tensor, "batch kv_heads key channels"] | None = None
    bias: Bias | None = None
