"""Stick-breaking weights."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Bool, Float
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional as F

from sinkscope.attention.normalizers.base import Normalizer
from sinkscope.attention.pieces import STRICT


@dataclass(frozen=True, config=STRICT)
class StickBreaking(Normalizer):
    """w_j = σ(s_j) · Π_{i > j visible} (1 − σ(s_i)): from the last visible key backwards, each takes its share of what
    is left. Rows sum to at most 1. Source: Tan et al. 2024 (2410.17980).

    They leave out the query's own key; here it is the first to take, as in every other operation. Slots come last.
    Computed as exp(log σ(s_j) + Σ_{i > j} log σ(−s_i)).
    """

    kind: Literal["stick_breaking"] = "stick_breaking"

    def weights(
        self,
        scores: Float[Tensor, "... query key"],
        visible: Bool[Tensor, "... query key"],
        count: Float[Tensor, "... query 1"],
    ) -> Float[Tensor, "... query key"]:
        left = F.logsigmoid(-scores).masked_fill(~visible, 0.0)
        remaining = left.flip(-1).cumsum(-1).flip(-1) - left
        return (F.logsigmoid(scores) + remaining).exp().masked_fill(~visible, 0.0)
