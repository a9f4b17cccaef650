"""The softmax family. Slots come first among the columns and are further keys to all of them."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from sinkscope.attention.normalizers.base import (
    Differentiated,
    Fraction,
    Map,
    Normalizer,
    PerQuery,
    Visible,
    exponential,
)
from sinkscope.attention.pieces import piece
from sinkscope.errors import InputError

Positive = Annotated[float, Field(gt=0)]
USUAL_GAMMA = -0.025


@piece
class Softmax(Normalizer):
    """w_j = exp(s_j) / Σ_visible exp(s_i); rows sum to one over tokens and slots. Source: Vaswani et al. 2017."""

    kind: Literal["softmax"] = "softmax"

    def weights(self, scores: Map, visible: Visible, count: PerQuery) -> Map:
        """Rows in which nothing is visible are zero, in values and gradients."""
        # −inf gives hidden keys weight 0 exactly, but a row of nothing else is NaN, and NaN times 0 stays NaN in the
        # backward pass. Such rows get finite scores first and are zeroed after, in values and gradients.
        hidden = ~visible
        blank = hidden.all(-1, keepdim=True)
        shielded = scores.masked_fill(hidden & ~blank, -torch.inf).masked_fill(blank, 0.0)
        return torch.softmax(shielded, -1).masked_fill(hidden, 0.0)

    def log_partition(self, scores: Map, visible: Visible) -> Float[Tensor, "... query"]:
        """log Σ_visible exp(s_i), in nats; −inf where nothing is visible."""
        # logsumexp subtracts the row's maximum first; exp of a logit above 88 would overflow fp32.
        return torch.logsumexp(scores.masked_fill(~visible, -torch.inf), -1)


@piece
class ScaledSoftmax(Normalizer):
    """w = α · softmax(s), rows sum to α: the normalizer Z divided by α. Source: Gu et al. 2025, Table 14."""

    alpha: Positive
    kind: Literal["scaled_softmax"] = "scaled_softmax"
    metric_weights = "renormalized"

    def weights(self, scores: Map, visible: Visible, count: PerQuery) -> Map:
        return self.alpha * Softmax().weights(scores, visible, count)


@piece
class PowerSoftmax(Differentiated):
    """w_j = exp(s_j) / (Σ exp(p · s_i))^(1/p) = softmax(p · s)_j^(1/p). Source: Gu et al. 2025, section 7.

    Rows sum to at most 1 for p ≤ 1 and lie in [1, n^(1 − 1/p)] for p ≥ 1. Computed as exp(s − lse(p · s) / p).
    """

    p: Positive
    kind: Literal["power_softmax"] = "power_softmax"
    metric_weights = "renormalized"

    def split(self, scores: Map, count: PerQuery) -> Fraction:
        # In logs, since exp(s) and Σ exp(p · s) each overflow where their ratio does not.
        shares = torch.log_softmax(self.p * scores, -1)
        return Fraction(exponential(shares, 1 / self.p), inner=shares)

    def slope(self, scores: Map, count: PerQuery, split: Fraction, upstream: Map, delta: PerQuery) -> Map:
        """x − softmax(p · s) · Σ x with x = w · upstream."""
        assert split.inner is not None
        # ∂w_j/∂s_i = w_j (δ_ij − softmax(p · s)_i): the p of the inner derivative cancels the root's 1 / p.
        each = upstream.mul_(split.numerator)
        return each - exponential(split.inner).mul_(each.sum(-1, keepdim=True))


@piece
class PowerSigmoid(PowerSoftmax):
    """w_j = σ(s_j) / (Σ σ(s_i)^p)^(1/p), a `PowerSoftmax` of log σ(s). Source: Gu et al. 2025, section 7.

    p = 1 is `sigmoid_normalized` without its 1e-8 in the divisor: where every score is far below zero rows keep their
    sum.
    """

    kind: Literal["power_sigmoid"] = "power_sigmoid"  # type: ignore[assignment]

    def split(self, scores: Map, count: PerQuery) -> Fraction:
        return super().split(torch.nn.functional.logsigmoid(scores), count)

    def slope(self, scores: Map, count: PerQuery, split: Fraction, upstream: Map, delta: PerQuery) -> Map:
        """That of `PowerSoftmax`, times ∂ log σ(s) / ∂s = σ(−s)."""
        return super().slope(scores, count, split, upstream, delta).mul_(torch.sigmoid(-scores))


@piece
class ClippedSoftmax(Differentiated):
    """w = clip((ζ − γ) · softmax(s) + γ, 0, 1): weights can be exactly zero. Source: Bondarenko et al. 2023.

    `gamma`: γ, −0.025 where neither is given. `alpha` in place of γ: γ = −α / n, with n the number of tokens that the
    query sees (the authors write the maximum length); both together are refused. Rows sum to between 0 and ζ. Clipped
    entries have no gradient.
    """

    gamma: Annotated[float, Field(le=0)] | None = None
    zeta: Annotated[float, Field(gt=0)] = 1.0
    alpha: Positive | None = None
    kind: Literal["clipped_softmax"] = "clipped_softmax"

    def __post_init__(self) -> None:
        if self.alpha is not None and self.gamma is not None:
            raise InputError(
                f"clipped softmax: gamma = {self.gamma} and alpha = {self.alpha}: alpha decides gamma, so give one"
            )
        if self.alpha is None and self.gamma is None:
            object.__setattr__(self, "gamma", USUAL_GAMMA)

    def split(self, scores: Map, count: PerQuery) -> Fraction:
        gamma = self._gamma(count)
        # γ ≤ 0 keeps hidden keys, whose share is 0, at weight 0.
        shares = torch.softmax(scores, -1)
        return Fraction((shares * (self.zeta - gamma) + gamma).clamp(0, 1), inner=shares)

    def slope(self, scores: Map, count: PerQuery, split: Fraction, upstream: Map, delta: PerQuery) -> Map:
        """The slope of a softmax, where the clipped weights lie between 0 and 1."""
        assert split.inner is not None
        gamma, shares = self._gamma(count), split.inner
        clipped = (split.numerator <= 0) | (split.numerator >= 1)
        stretched = upstream.masked_fill_(clipped, 0.0).mul_(self.zeta - gamma)
        return torch.ops.aten._softmax_backward_data(stretched, shares, -1, shares.dtype)  # shares · (g − Σ shares · g)

    def _gamma(self, count: Tensor) -> Tensor | float:
        if self.alpha is not None:
            return -self.alpha / count
        return USUAL_GAMMA if self.gamma is None else self.gamma


@piece
class Softpick(Differentiated):
    """w_j = relu(e^s_j − 1) / (Σ |e^s_i − 1| + ε), rows sum to at most 1. Source: Zuhri et al. 2025.

    Multiplied through by e^−m with m = max(max s, 0), so that neither term overflows (the authors' m = max s does where
    all scores are far below zero). ε is added after that, as theirs is. Negative scores get a gradient through the
    denominator.
    """

    epsilon: Positive = 1e-8
    kind: Literal["softpick"] = "softpick"
    hidden = 0.0  # e^0 − 1 = 0

    def split(self, scores: Map, count: PerQuery) -> Fraction:
        # Detached: e^−m cancels in the fraction, up to ε, so no gradient belongs to it.
        largest = scores.detach().amax(-1, keepdim=True).clamp(min=0)
        excess = exponential(scores - largest) - exponential(-largest)
        excess = excess.masked_fill(scores == 0, 0.0)  # two roundings of one exp would let a hidden key leak through
        return Fraction(excess.relu(), excess.abs().sum(-1, keepdim=True) + self.epsilon, excess)

    def slope(self, scores: Map, count: PerQuery, split: Fraction, upstream: Map, delta: PerQuery) -> Map:
        """e^(s − m) · (upstream − delta) above zero, e^(s − m) · delta below it."""
        assert split.inner is not None
        excess = split.inner
        each = torch.ops.aten.threshold_backward(upstream, excess, 0).sub_(excess.sign().mul_(delta))
        return each.mul_(exponential(scores - scores.amax(-1, keepdim=True).clamp(min=0)))
