"""Means of a few values with their intervals, by Student's distribution from scipy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """A sum of means of independent samples: its value, standard error and degrees of freedom.

    `n`: the size of each sample. The standard error is NaN if a sample has fewer than two values, and 0 if none varies;
    then all bounds are the value itself.
    """

    mean: float
    error: float
    df: float
    n: tuple[int, ...]

    def bound(self, p: float) -> float:
        """The p quantile of the estimate: an upper confidence bound for p > 1/2, a lower one for p < 1/2."""
        if self.error == 0:
            return self.mean
        from scipy.special import stdtrit  # slow to import, and not needed to read records

        return self.mean + float(stdtrit(self.df, p)) * self.error

    def above(self, limit: float) -> float:
        """The one-sided p-value of "not above the limit"."""
        if self.error == 0:
            return 0.0 if self.mean > limit else 1.0
        from scipy.special import stdtr

        return float(stdtr(self.df, (limit - self.mean) / self.error))  # P(T ≥ t) as P(T ≤ −t), exact in the tail


def estimate(samples: Iterable[tuple[float, Sequence[float]]]) -> Estimate:
    """Σ w · mean(x) over independent samples (w, x), with Welch and Satterthwaite's degrees of freedom.

    error² = Σ w² s²/n, df = error⁴ / Σ (w² s²/n)² / (n − 1), s² the samples' own variances. One sample with w = 1 is
    the usual t interval; two with 1 and −1 are Welch's (`scipy.stats.ttest_ind` with `equal_var=False`, which takes
    exactly two).
    """
    weighted = [(weight, list(values)) for weight, values in samples]
    mean = math.fsum(weight * math.fsum(values) / len(values) for weight, values in weighted)
    n = tuple(len(values) for _, values in weighted)
    if min(n) < 2:
        return Estimate(mean, math.nan, math.nan, n)
    terms = [weight**2 * _variance(values) / len(values) for weight, values in weighted]
    total = math.fsum(terms)
    if total == 0:
        return Estimate(mean, 0.0, math.inf, n)
    df = total**2 / math.fsum(term**2 / (len(values) - 1) for term, (_, values) in zip(terms, weighted, strict=True))
    return Estimate(mean, math.sqrt(total), df, n)


def _variance(values: Sequence[float]) -> float:
    if max(values) == min(values):
        return 0.0  # rounding of the sum is not variation
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
