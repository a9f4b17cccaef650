"""Intervals over texts, by Student's t. NaN is what was not measured; it counts nowhere.

The unit is a text, of equal weight whatever its length. Coverage at a nominal 95 %, for normal data and n = 4, 8, 16
texts: Student's t 95, 95, 95 %; the percentile bootstrap 80, 90, 93 %; BCa 79, 89, 93 %. Of skewed data t covers less:
for an exponential distribution 88, 89, 91 % (`tests/statistics/test_intervals.py` simulates all of it). So t is used at
every n, and `note` says where there are few texts.
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

FEW = 20  # texts; below, a note says so
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A value and the ends of its interval, both NaN where one text alone gives none."""

    value: float
    low: float
    high: float


def mean_bounds(
    values: Float[np.ndarray, "text *shape"], level: float = LEVEL
) -> tuple[Float[np.ndarray, "*shape"], Float[np.ndarray, "*shape"]]:
    """m ± t·s/√n of each column over its texts: lower and upper ends, NaN where fewer than two texts count.

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
    """Ends of the mean of shares from 0 to 1, which stay within them: logit(m) ± t·s/(√n·m·(1 − m)), turned back.

    The delta method on the logit scale. Where all texts have the same value, both ends are that value: no variation was
    seen, which is not the same as certainty, and `note` says how few texts that may be. NaN with fewer than two texts.
    Raises `InputError` for values outside [0, 1].
    """
    array = np.asarray(values, dtype=np.float64)
    if bool((array < -1e-9).any()) or bool((array > 1 + 1e-9).any()):
        raise InputError(f"shares lie between 0 and 1, not {np.nanmin(array):g} to {np.nanmax(array):g}")
    mean, error, varies = _moments(array, level)
    with np.errstate(divide="ignore", invalid="ignore"):
        center = np.log(mean / (1 - mean))
        width = error / (mean * (1 - mean))
        low, high = (1 / (1 + np.exp(-(center + sign * width))) for sign in (-1, 1))
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

    NaN where the denominator's mean is 0. It is meant for denominators that can be told from 0; elsewhere no interval
    of a ratio is bounded. Raises `InputError` for different numbers of texts.
    """
    if len(numerator) != len(denominator):
        raise InputError(f"a ratio is over the same texts: {len(numerator)} and {len(denominator)} were given")
    known = ~(np.isnan(numerator) | np.isnan(denominator))
    top, bottom = np.asarray(numerator, dtype=np.float64)[known], np.asarray(denominator, dtype=np.float64)[known]
    if not len(top) or float(bottom.mean()) == 0:
        return Interval(math.nan, math.nan, math.nan)
    ratio = float(top.mean() / bottom.mean())
    _, error, _ = _moments((top - ratio * bottom) / bottom.mean(), level)
    return Interval(ratio, ratio - float(error), ratio + float(error))


def difference_interval(
    first: Float[np.ndarray, " text"], second: Float[np.ndarray, " other"], level: float = LEVEL
) -> Interval:
    """mean(second) − mean(first) of independent samples, with Welch's interval; NaN ends where one has one text."""
    parts = [np.asarray(values, dtype=np.float64) for values in (first, second)]
    parts = [values[~np.isnan(values)] for values in parts]
    if not all(map(len, parts)):
        return Interval(math.nan, math.nan, math.nan)
    found = estimate([(-1.0, parts[0].tolist()), (1.0, parts[1].tolist())])
    return Interval(found.mean, found.bound((1 - level) / 2), found.bound((1 + level) / 2))


def note(texts: int) -> str:
    """What is said of an interval over so few texts; empty from `FEW` texts on."""
    if texts >= FEW:
        return ""
    if texts == 1:
        return "one text: no interval"
    return f"{texts} texts: few, so the interval is wide, and rare texts are not in it (give at least {FEW})"


def nanmean(values: np.ndarray, axis: int) -> np.ndarray:
    """Mean over what was measured; NaN where nothing was."""
    with quiet():
        return np.asarray(np.nanmean(values, axis=axis))


@contextmanager
def quiet() -> Iterator[None]:
    """Without numpy's warnings about slices in which everything is NaN: such a slice gives NaN, as it should."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Mean of empty slice|All-NaN slice|Degrees of freedom")
        yield


def _moments(values: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, half-width t·s/√n, and whether the texts differ at all, of each column."""
    if not 0 < level < 1:
        raise InputError(f"level = {level}: must lie between 0 and 1")
    array = np.asarray(values, dtype=np.float64)
    count = (~np.isnan(array)).sum(0)
    mean = nanmean(array, 0)
    with quiet():
        varies = np.asarray(np.nanmax(array, 0) > np.nanmin(array, 0)) if len(array) else np.zeros(mean.shape, bool)
        deviation = np.asarray(np.nanstd(array, 0, ddof=1)) if len(array) else mean
    df = np.maximum(count - 1, 1)
    error = _quantile(df, level) * deviation / np.sqrt(np.maximum(count, 1))
    error = np.where(count > 1, np.where(varies, error, 0.0), np.nan)
    return mean, error, varies & (count > 1)


def _quantile(df: np.ndarray, level: float) -> np.ndarray:
    """Student's t, two-sided."""
    from scipy.special import stdtrit  # here: it takes longer to load than everything else of this room

    return np.asarray(stdtrit(df, (1 + level) / 2))
