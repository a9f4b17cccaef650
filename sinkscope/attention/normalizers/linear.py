"""Weights that are the scores themselves: linear attention."""

from __future__ import annotations

from typing import Literal

from sinkscope.attention.normalizers.base import Differentiated, Fraction, Map, PerQuery
from sinkscope.attention.normalizers.elementwise import EPSILON
from sinkscope.attention.pieces import piece


@piece
class Linear(Differentiated):
    """w_j = s_j / Z; with a feature map φ, s = φ(q)·φ(k) / √d. Source: Gu et al. 2025, Tables 6 and 15.

    `divisor`: "one" (Z = 1), "sum" (Z = Σ s + 1e-8, for positive features), "abs_sum" (Z = max(|Σ s|, 1), for scores of
    either sign). Sums run over what is visible.

    Scores of either sign cancel, in the sum and in the output, so rounding matters more the larger they are. Under
    weights that were trained with softmax (scores of hundreds), "abs_sum" is ill conditioned: SmolLM2-135M with
    `kernel_identity_normalized` attached gives logits in fp32 that depend on the order of summation, by as much as
    their own size between cached decoding and the full pass, and by 6e-14 in fp64.
    """

    divisor: Literal["one", "sum", "abs_sum"] = "one"
    kind: Literal["linear"] = "linear"
    metric_weights = "renormalized"
    hidden = 0.0

    @property
    def couples_keys(self) -> bool:
        return self.divisor != "one"

    def split(self, scores: Map, count: PerQuery) -> Fraction:
        if self.divisor == "one":
            return Fraction(scores)
        total = scores.sum(-1, keepdim=True)
        return Fraction(scores, total + EPSILON if self.divisor == "sum" else total.abs().clamp(min=1), total)

    def slope(self, scores: Map, count: PerQuery, split: Fraction, upstream: Map, delta: PerQuery) -> Map:
        """upstream − Z' · delta with Z' = ∂Z / ∂Σ s."""
        if split.inner is None:
            return upstream
        total = split.inner
        return upstream.sub_(delta if self.divisor == "sum" else delta * total.sign() * (total.abs() >= 1))
