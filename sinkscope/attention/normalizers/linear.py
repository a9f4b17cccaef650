"""Weights that are the scores themselves: linear attention."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Bool, Float
from pydantic.dataclasses import dataclass
from torch import Tensor

from sinkscope.attention.normalizers.base import Normalizer
from sinkscope.attention.normalizers.elementwise import EPSILON
from sinkscope.attention.pieces import STRICT


@dataclass(frozen=True, config=STRICT)
class Linear(Normalizer):
    """w_j = s_j / Z; with a feature map φ, s = φ(q)·φ(k) / √d. Source: Gu et al., Tables 6 and 15 [A18 to A21].

    `divisor`: "one" (Z = 1), "sum" (Z = Σ s + 1e-8, for positive features), "abs_sum" (Z = max(|Σ s|, 1), for scores of
    either sign). Sums run over what is visible.
    """

    divisor: Literal["one", "sum", "abs_sum"] = "one"
    kind: Literal["linear"] = "linear"
    metric_weights = "renormalized"

    @property
    def couples_keys(self) -> bool:
        return self.divisor != "one"

    def weights(
        self,
        scores: Float[Tensor, "... query key"],
        visible: Bool[Tensor, "... query key"],
        count: Float[Tensor, "... query 1"],
    ) -> Float[Tensor, "... query key"]:
        weights = scores.masked_fill(~visible, 0.0)
        if self.divisor == "one":
            return weights
        total = weights.sum(-1, keepdim=True)
        return weights / (total + EPSILON if self.divisor == "sum" else total.abs().clamp(min=1))
