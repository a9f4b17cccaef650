"""Averages over what was measured, and intervals from resampling. NaN is what was not measured; it counts nowhere."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from sinkscope.errors import InputError
from sinkscope.statistics import Interval, nanmean, quiet

__all__ = ["Interval", "bootstrap", "nanmean", "quantiles", "quiet", "resampled_means"]


def bootstrap(
    values: Float[np.ndarray, "sample *shape"], level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> tuple[Float[np.ndarray, "*shape"], Float[np.ndarray, "*shape"]]:
    """Percentile interval of the mean over samples, drawn with replacement; NaN samples count nowhere."""
    if not 0 < level < 1:
        raise InputError(f"level = {level}: must lie between 0 and 1")
    return quantiles(resampled_means(values, resamples, seed), level)


def quantiles(
    drawn: Float[np.ndarray, "resample *shape"], level: float
) -> tuple[Float[np.ndarray, "*shape"], Float[np.ndarray, "*shape"]]:
    """The central `level` of each column: its lower and upper end."""
    tail = (1 - level) / 2
    with quiet():
        low, high = np.nanquantile(drawn, [tail, 1 - tail], axis=0)
    return np.asarray(low), np.asarray(high)


def resampled_means(
    values: Float[np.ndarray, "sample *shape"], resamples: int, seed: int
) -> Float[np.ndarray, "resample *shape"]:
    """Means over `resamples` draws; the draws depend on the seed and the number of samples alone."""
    count = len(values)
    draws = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=resamples).astype(np.float64)
    flat = values.reshape(count, -1).astype(np.float64)
    known = ~np.isnan(flat)
    with np.errstate(divide="ignore", invalid="ignore"):
        means = (draws @ np.where(known, flat, 0.0)) / (draws @ known)
    return means.reshape(resamples, *values.shape[1:])
