"""The numbers of a slot."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class SlotTerms:
    """The three parts of one slot, each absent where it is zero: logit scaling · q·k* + b, value v*.

    Key heads follow `kv_heads`, logits follow the query heads.
    """

    key: Float[Tensor, "kv_heads dim"] | None = None
    logit: Float[Tensor, "heads"] | Float[Tensor, "#batch heads query"] | None = None
    value: Float[Tensor, "kv_heads value_dim"] | None = None
