"""Means of a few seeds with their intervals, and Student's t distribution, without more dependencies.

P(T ≤ t) = 1 − I_x(ν/2, 1/2)/2 for t ≥ 0, where x = ν/(ν + t²) and I is the regularized incomplete beta function.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

_STEPS, _SMALL = 500, 1e-300


@dataclass(frozen=True)
class Estimate:
    """A sum of means of independent samples: its value, standard error and degrees of freedom.

    `n`: the size of each sample. Where one has fewer than two values the standard error is NaN; where no sample varies
    it is 0, and every bound is the value itself.
    """

    mean: float
    error: float
    df: float
    n: tuple[int, ...]

    def bound(self, p: float) -> float:
        """Where the effect lies below with confidence p: its upper bound for p > 1/2, its lower one for p < 1/2."""
        return self.mean if self.error == 0 else self.mean + quantile(p, self.df) * self.error

    def above(self, limit: float) -> float:
        """The one-sided p-value of "not above the limit"."""
        if self.error == 0:
            return 0.0 if self.mean > limit else 1.0
        return 1 - cumulative((self.mean - limit) / self.error, self.df)


def estimate(samples: Iterable[tuple[float, Sequence[float]]]) -> Estimate:
    """Σ w · mean(x) over independent samples (w, x), with Welch and Satterthwaite's degrees of freedom.

    error² = Σ w² s²/n, df = error⁴ / Σ (w² s²/n)² / (n − 1), s² the samples' own variances. One sample with w = 1 is
    the usual t interval; two with 1 and −1 are Welch's.
    """
    given = [(weight, list(values)) for weight, values in samples]
    mean = math.fsum(weight * math.fsum(values) / len(values) for weight, values in given)
    n = tuple(len(values) for _, values in given)
    if min(n) < 2:
        return Estimate(mean, math.nan, math.nan, n)
    parts = [weight**2 * _variance(values) / len(values) for weight, values in given]
    total = math.fsum(parts)
    if total == 0:
        return Estimate(mean, 0.0, math.inf, n)
    df = total**2 / math.fsum(part**2 / (len(values) - 1) for part, (_, values) in zip(parts, given, strict=True))
    return Estimate(mean, math.sqrt(total), df, n)


def holm(p: Sequence[float]) -> list[float]:
    """p-values corrected for how many there are, by Holm's step-down method, in the given order.

    The i-th smallest of m becomes the largest (m − j) p_j over j ≤ i (from 0), at most 1: of all claims that are then
    at or below 5 %, one or more is false with a chance of at most 5 %.
    """
    order = sorted(range(len(p)), key=lambda place: p[place])
    found, so_far = [0.0] * len(p), 0.0
    for rank, place in enumerate(order):
        so_far = max(so_far, min(1.0, (len(p) - rank) * p[place]))
        found[place] = so_far
    return found


def _variance(values: Sequence[float]) -> float:
    if max(values) == min(values):
        return 0.0  # a sum's rounding is no variation
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def cumulative(t: float, df: float) -> float:
    """P(T ≤ t) of Student's t with df > 0 degrees of freedom, which need not be whole."""
    if math.isnan(t) or math.isnan(df):
        return math.nan
    if math.isinf(t):
        return 1.0 if t > 0 else 0.0
    tail = _incomplete_beta(df / 2, 0.5, df / (df + t * t)) / 2
    return 1 - tail if t >= 0 else tail


@cache
def quantile(p: float, df: float) -> float:
    """The t with P(T ≤ t) = p, 0 < p < 1: by bisection, to about the last digit of a float."""
    if p < 0.5:
        return -quantile(1 - p, df)
    high = 1.0
    while cumulative(high, df) < p:
        high *= 2
    low = 0.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if cumulative(middle, df) < p else (low, middle)
    return (low + high) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """I_x(a, b) by its continued fraction, on the side where that converges fast."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, 1 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function, by Lentz's method."""
    c, d = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    found = d
    for m in range(1, _STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _away_from_zero(1 + term * d)
            c = _away_from_zero(1 + term / c)
            found *= c * d
        if abs(c * d - 1) < 1e-16:
            break
    return found


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _SMALL else _SMALL
