"""Weights computed from each score separately, with or without row normalization."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from sinkscope.attention.normalizers.base import Differentiated, Fraction, Map, PerQuery, exponential
from sinkscope.attention.pieces import piece

EPSILON = 1e-8  # added to the sum of a normalized row, as in the paper's code


class _Elementwise(Differentiated):
    """w_j = f(s_j), or f(s_j) / (Σ_visible f(s_i) + 1e-8) where `normalized`."""

    metric_weights = "renormalized"
    normalized: bool

    @property
    def couples_keys(self) -> bool:
        return self.normalized

    def split(self, scores: Map, count: PerQuery) -> Fraction:
        weights = self._each(scores, count)
        return Fraction(weights, weights.sum(-1, keepdim=True) + EPSILON if self.normalized else None)

    def slope(self, scores: Map, count: PerQuery, split: Fraction, upstream: Map, delta: PerQuery) -> Map:
        """f'(s) · (upstream − delta), the second term where rows are normalized."""
        return self._times_slope(upstream.sub_(delta) if self.normalized else upstream, split.numerator)

    def _each(self, scores: Tensor, count: Tensor) -> Tensor:
        """f(s)."""
        raise NotImplementedError

    def _times_slope(self, upstream: Tensor, weights: Tensor) -> Tensor:
        """upstream · f'(s), from f(s)."""
        raise NotImplementedError


@piece
class Sigmoid(_Elementwise):
    """f(s) = σ(s + b), rows `normalized`. Source: Gu et al. 2025, Table 6.

    `bias`: b. `minus_log_n`: b gains −log n with n the number of tokens that the query sees, so that a row of zero
    scores sums to n / (1 + n). Source: Ramapuram et al. 2024 (2409.04431); their code adds the same number to all
    scores, −7.62 at a context of 2048.
    """

    normalized: bool = False
    bias: float = 0.0
    minus_log_n: bool = False
    kind: Literal["sigmoid"] = "sigmoid"

    def _each(self, scores: Tensor, count: Tensor) -> Tensor:
        if self.minus_log_n:
            scores = scores - count.log()
        return torch.sigmoid(scores + self.bias if self.bias else scores)

    def _times_slope(self, upstream: Tensor, weights: Tensor) -> Tensor:
        return torch.ops.aten.sigmoid_backward(upstream, weights)


@piece
class Elu(_Elementwise):
    """f(s) = elu(s) + 1 = max(s, 0) + e^min(s, 0), rows `normalized`. Source: Gu et al. 2025, Table 6."""

    normalized: bool = False
    kind: Literal["elu"] = "elu"

    def _each(self, scores: Tensor, count: Tensor) -> Tensor:
        return scores.relu() + exponential(scores.clamp(max=0))

    def _times_slope(self, upstream: Tensor, weights: Tensor) -> Tensor:
        # f' is 1 where f > 1, and e^s = f below.
        return weights.clamp(max=1).mul_(upstream)


@piece
class Relu(_Elementwise):
    """f(s) = relu(s), divided by n, the number of tokens that the query sees, where `over_n`; rows `normalized`.

    Sources: Wortsman et al. 2023b (2309.08586, who divide by the length of the sequence); Guo et al. 2024a divide by
    the position of the query.
    """

    normalized: bool = False
    over_n: bool = True
    kind: Literal["relu"] = "relu"

    def split(self, scores: Map, count: PerQuery) -> Fraction:
        """With each row's n in its divisor, where it costs nothing."""
        weights, n = scores.relu(), count if self.over_n else None
        if not self.normalized:
            return Fraction(weights, n)
        # (relu / n) / (Σ relu / n + ε) = relu / (Σ relu + ε n)
        return Fraction(weights, weights.sum(-1, keepdim=True) + (EPSILON if n is None else EPSILON * n))

    def _times_slope(self, upstream: Tensor, weights: Tensor) -> Tensor:
        return torch.ops.aten.threshold_backward(upstream, weights, 0)
