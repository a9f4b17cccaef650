"""Metrics as pure functions of stored statistics. Arrays are numpy; NaN marks what was not measured and counts nowhere.

Order of averaging: heads of a layer, then layers, then samples, so that a layer counts once however many heads it has.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from sinkscope.errors import InputError

SHORT = 10  # below this many tokens uniform attention itself gives the first token more than 0.3


@dataclass(frozen=True)
class Interval:
    """A value with a bootstrap interval."""

    value: float
    low: float
    high: float


def check_epsilon(epsilon: float) -> None:
    """Raises `InputError` unless 0 < epsilon < 1."""
    if not 0 < epsilon < 1:
        raise InputError(f"epsilon = {epsilon}: must lie between 0 and 1")


def exceeds(received: Float[np.ndarray, "*shape"], epsilon: float) -> Float[np.ndarray, "*shape"]:
    """1 where received > epsilon (strictly), 0 where not, NaN where not measured."""
    check_epsilon(epsilon)
    return np.where(np.isnan(received), np.nan, (received > epsilon).astype(np.float64))


def layer_rates(
    received: Float[np.ndarray, "sample layer head position"], epsilon: float
) -> Float[np.ndarray, "sample layer position"]:
    """Percent of a layer's heads whose alpha exceeds epsilon, per sample and position."""
    return 100 * nanmean(exceeds(received, epsilon), 2)


def sample_rates(
    received: Float[np.ndarray, "sample layer head position"], epsilon: float
) -> Float[np.ndarray, "sample position"]:
    """Sink_k^eps of each sample: mean over layers of the layer's rate, in percent."""
    return nanmean(layer_rates(received, epsilon), 1)


def sink_rate(
    received: Float[np.ndarray, "sample layer head position"], epsilon: float
) -> Float[np.ndarray, "position"]:
    """Sink_k^eps = 100 · mean over samples, layers and heads of [alpha_k > eps] [C1]. Source: Gu et al., section 3.

    The indicator is taken per sample, layer and head and then averaged, never the other way round.
    """
    return nanmean(sample_rates(received, epsilon), 0)


def paper_slot(
    slot: Float[np.ndarray, "sample layer head"], tokens: Int[np.ndarray, "sample layer"]
) -> Float[np.ndarray, "sample layer head"]:
    """(T · slot + 1) / (T + 1): the slot's mass as the paper's code counts it [A7].

    There a zero query, all of whose attention is on the slot, stands before the others and is counted (catalogue 9.6).
    """
    return (tokens[..., None] * slot + 1) / (tokens[..., None] + 1)


def first_over_rest(lengths: Float[np.ndarray, "*shape position"]) -> Float[np.ndarray, "*shape"]:
    """‖x_0‖ / mean over t ≠ 0 of ‖x_t‖ along the last axis [C3, C5]; NaN with fewer than two tokens."""
    rest = nanmean(lengths[..., 1:], -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = lengths[..., 0] / rest
    return np.where(rest > 0, ratio, np.nan)


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


def nanmean(values: np.ndarray, axis: int) -> np.ndarray:
    """Mean over what was measured; NaN where nothing was."""
    with quiet():
        return np.asarray(np.nanmean(values, axis=axis))


@contextmanager
def quiet() -> Iterator[None]:
    """Without numpy's warnings about slices in which everything is NaN: such a slice gives NaN, as it should."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Mean of empty slice|All-NaN slice")
        yield
