"""The family between softmax and sparsemax."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from sinkscope.attention.normalizers.base import Differentiated, Fraction, Map, PerQuery
from sinkscope.attention.pieces import piece

STEPS = 24  # of Newton's method; 17 reach rounding in fp32 for rows of 10⁵ equal scores
NEAR_SOFTMAX = 1.1  # the alpha below which differences from 1 are finer than those from τ


@piece
class Entmax(Differentiated):
    """w_j = [(α − 1) s_j − τ]₊^(1 / (α − 1)), with τ such that the row sums to 1: weights can be exactly zero.

    α = 1 is softmax (the limit), α = 2 sparsemax. τ is found by Newton's method from max (α − 1) s − 1, where the sum
    is at least 1: it is convex and falling in τ, so every step stays on that side. Scores of weight zero have no
    gradient. Source: Peters et al. 2019 (1905.05702); x-transformers offers α = 1.5.
    """

    alpha: Annotated[float, Field(ge=1, le=2)] = 1.5
    kind: Literal["entmax"] = "entmax"

    def split(self, scores: Map, count: PerQuery) -> Fraction:
        if self.alpha == 1:
            return Fraction(torch.softmax(scores, -1))
        with torch.no_grad():
            largest = scores.amax(-1, keepdim=True)
            shifted = (self.alpha - 1) * (scores - largest)
            # Where the largest, shifted to 0, weighs 1 already.
            threshold = torch.full_like(largest, 0.0 if self._from_one else -1.0)
            for _ in range(STEPS):
                threshold = threshold + self._step(shifted, threshold)
        # The last step is differentiated: with τ and the slope constant, its derivative is that of τ by the implicit
        # function theorem, and autograd sees none of the others.
        shifted = (self.alpha - 1) * (scores - largest)
        return Fraction(self._power(shifted - threshold - self._step(shifted, threshold)))

    def slope(self, scores: Map, count: PerQuery, split: Fraction, upstream: Map, delta: PerQuery) -> Map:
        """g · (upstream − Σ g · upstream / Σ g) with g = w^(2 − α) where w > 0."""
        weights = split.numerator
        # At α = 2 the exponent is 0, and 0⁰ = 1 would give keys of weight 0 a slope.
        each = weights.pow(2 - self.alpha).masked_fill(weights <= 0, 0.0)
        mean = (each * upstream).sum(-1, keepdim=True) / each.sum(-1, keepdim=True)
        return upstream.sub_(mean).mul_(each)

    def _power(self, above: Tensor) -> Tensor:
        return self._from_zero(above) * self._each(above)

    def _each(self, above: Tensor) -> Tensor:
        """g = above^((2 − α) / (α − 1)), without a power for α = 1.5 and 2; 0 at and below zero."""
        exponent, positive = (2 - self.alpha) / (self.alpha - 1), self._from_zero(above)
        if exponent in (0, 1):
            return positive if exponent else (positive > 0).to(above.dtype)
        if not self._from_one:
            return positive.pow(exponent)
        power = torch.exp(exponent * torch.log1p(above.where(positive > 0, 0.0)))
        return power.where(positive > 0, 0.0)

    @property
    def _from_one(self) -> bool:
        """Whether what is above τ is kept as its difference from 1, the largest it can be.

        All that weighs something near α = 1 is within a few (α − 1) of 1, and the power 1 / (α − 1) magnifies the
        rounding of numbers near 1. Elsewhere τ nears 0 in long rows, where differences from 1 would be the coarse ones.
        """
        return self.alpha < NEAR_SOFTMAX

    def _from_zero(self, above: Tensor) -> Tensor:
        return (above + 1 if self._from_one else above).relu()

    def _step(self, shifted: Tensor, threshold: Tensor) -> Tensor:
        """(Σ w − 1) / −∂Σ w / ∂τ, the slope being Σ g / (α − 1)."""
        above = shifted - threshold
        # Never 0: the largest score stays above τ.
        falls = self._each(above.detach()).sum(-1, keepdim=True) / (self.alpha - 1)
        return (self._power(above).sum(-1, keepdim=True) - 1) / falls
