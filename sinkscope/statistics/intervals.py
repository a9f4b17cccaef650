"""Intervals over texts, by Student's t. NaN means not measured, and is ignored.

The unit is a text, of equal weight whatever its length. Coverage at a nominal 95 %, for normal data and n = 4, 8, 16
texts: Student's t 95, 95, 95 %; the percentile bootstrap 80, 90, 93 %; BCa 79, 89, 93 %. For skewed data t covers less:
88, 89, 91 % for an exponential distribution (`tests/statistics/test_intervals.py` simulates all of this). So t is used
at every n, and `note` warns about few texts.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from sinkscope.errors import InputError
from sinkscope.statistics.estimates import estimate

FEW = 20  # texts; fewer get a note
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A value and the ends of its interval, which are NaN for a single text."""

    value: float
    low: float
    high: float

    @property
    def unbounded(self) -> bool:
        """Whether it is a value alone: one text has no interval."""
        return not (math.isfinite(self.low) and math.isfinite(self.high))

    def __neg__(self) -> Interval:
        return Interval(-self.value, -self.high, -self.low)


def mean_bounds(
    values: Float[np.ndarray, "text *shape"], level: float = LEVEL
) -> tuple[Float[np.ndarray, "*shape"], Float[np.ndarray, "*shape"]]:
    """m ± t·s/√n of each column over its texts: lower and upper ends, NaN for fewer than two texts.

    t is the (1 + level)/2 quantile of Student's distribution with n − 1 degrees of freedom, s the sample's standard
    deviation. Raises `InputError` for a level outside (0, 1).
    """
    mean, error, _ = _moments(values, level)
    return np.asarray(mean - error), np.asarray(mean + error)


def mean_interval(values: Sequence[float] | Float[np.ndarray, " text"], level: float = LEVEL) -> Interval:
    """The mean over texts, with `mean_bounds`."""
    array = np.asarray(values, dtype=np.float64)
    low, high = mean_bounds(array, level)
    return Interval(float(nanmean(array, 0)), float(low), float(high))


def share_bounds(
    values: Float[np.ndarray, "text *shape"], level: float = LEVEL
) -> tuple[Float[np.ndarray, "*shape"], Float[np.ndarray, "*shape"]]:
    """Bounds of a mean of shares that stay within 0 to 1: logit(m) ± t·s/(√n·m·(1 − m)), transformed back.

    The delta method on the logit scale. If all texts have the same value, both ends are that value: no variation was
    seen, which is not certainty; `note` warns about few texts. NaN for fewer than two texts. Raises `InputError` for
    values outside [0, 1].
    """
    array = np.asarray(values, dtype=np.float64)
    # A mean of shares may leave the range by rounding.
    if bool((array < -1e-9).any()) or bool((array > 1 + 1e-9).any()):
        raise InputError(f"shares lie between 0 and 1, not {np.nanmin(array):g} to {np.nanmax(array):g}")
    mean, error, varies = _moments(array, level)
    with np.errstate(divide="ignore", invalid="ignore"):
        # d logit(m) / dm = 1 / (m (1 − m)), which turns the half-width into one on the logit scale.
        center = np.log(mean / (1 - mean))
        width = error / (mean * (1 - mean))
        low, high = (1 / (1 + np.exp(-(center + sign * width))) for sign in (-1, 1))
    # A mean of 0 or 1 has no logit; all texts agree there, so it does not vary.
    return np.where(varies, low, mean - error), np.where(varies, high, mean + error)


def share_interval(values: Sequence[float] | Float[np.ndarray, " text"], level: float = LEVEL) -> Interval:
    """The mean of shares over texts, with `share_bounds`."""
    array = np.asarray(values, dtype=np.float64)
    low, high = share_bounds(array, level)
    return Interval(float(nanmean(array, 0)), float(low), float(high))


def ratio_interval(
    numerator: Float[np.ndarray, " text"], denominator: Float[np.ndarray, " text"], level: float = LEVEL
) -> Interval:
    """r = mean(a) / mean(b) over the same texts, with the t interval of (a − r·b) / mean(b): the delta method.

    NaN if the denominator's mean is 0. For denominators that differ from 0 beyond their noise; otherwise no interval of
    a ratio is bounded. Raises `InputError` for different numbers of texts.
    """
    if len(numerator) != len(denominator):
        raise InputError(f"a ratio needs the same texts, not {len(numerator)} and {len(denominator)}")
    known = ~(np.isnan(numerator) | np.isnan(denominator))
    top, bottom = np.asarray(numerator, dtype=np.float64)[known], np.asarray(denominator, dtype=np.float64)[known]
    if not len(top) or float(bottom.mean()) == 0:
        return Interval(math.nan, math.nan, math.nan)
    ratio = float(top.mean() / bottom.mean())
    # a − r·b has mean 0 by the choice of r: only its spread is used.
    _, error, _ = _moments((top - ratio * bottom) / bottom.mean(), level)
    return Interval(ratio, ratio - float(error), ratio + float(error))


def difference_interval(
    first: Float[np.ndarray, " text"], second: Float[np.ndarray, " other"], level: float = LEVEL
) -> Interval:
    """mean(second) − mean(first) of independent samples, with Welch's interval; NaN ends if one has a single text."""
    samples = [np.asarray(values, dtype=np.float64) for values in (first, second)]
    samples = [values[~np.isnan(values)] for values in samples]
    if not all(map(len, samples)):
        return Interval(math.nan, math.nan, math.nan)
    difference = estimate([(-1.0, samples[0].tolist()), (1.0, samples[1].tolist())])
    return Interval(difference.mean, difference.bound((1 - level) / 2), difference.bound((1 + level) / 2))


def note(texts: int) -> str:
    """A warning for an interval over few texts; empty from `FEW` texts on."""
    if texts >= FEW:
        return ""
    if texts == 1:
        return "one text: no interval"
    return f"{texts} texts: few, so the interval is wide, and rare texts are not in it (give at least {FEW})"


def nanmean(values: np.ndarray, axis: int) -> np.ndarray:
    """Mean of the measured values; NaN if there are none."""
    with quiet():
        return np.asarray(np.nanmean(values, axis=axis))


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress numpy's warnings about all-NaN slices, whose mean is NaN as intended."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Mean of empty slice|All-NaN slice|Degrees of freedom")
        yield


def _moments(values: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, half-width t·s/√n, and whether the texts differ, for each column."""
    if not 0 < level < 1:
        raise InputError(f"level = {level}: must lie between 0 and 1")
    array = np.asarray(values, dtype=np.float64)
    count = (~np.isnan(array)).sum(0)
    mean = nanmean(array, 0)
    with quiet():
        # By the range: equal values have a deviation above 0 where their mean is rounded.
        varies = np.asarray(np.nanmax(array, 0) > np.nanmin(array, 0)) if len(array) else np.zeros(mean.shape, bool)
        deviation = np.asarray(np.nanstd(array, 0, ddof=1)) if len(array) else mean
    df = np.maximum(count - 1, 1)
    error = _quantile(df, level) * deviation / np.sqrt(np.maximum(count, 1))
    error = np.where(count > 1, np.where(varies, error, 0.0), np.nan)
    return mean, error, varies & (count > 1)


def _quantile(df: np.ndarray, level: float) -> np.ndarray:
    """Student's t, two-sided."""
    from scipy.special import stdtrit  # slow to import

    return np.asarray(stdtrit(df, (1 + level) / 2))
