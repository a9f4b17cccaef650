"""Metrics as pure functions of stored statistics. Arrays are numpy; NaN marks what was not measured and counts nowhere.

Order of averaging: heads of a layer, then layers, then samples, so that a layer counts once however many heads it has.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from sinkscope.errors import InputError
from sinkscope.metrics.statistics import nanmean

SHORT = 10  # below this many tokens uniform attention itself gives the first token more than 0.3


def check_epsilon(epsilon: float) -> None:
    """Raises `InputError` unless 0 < epsilon < 1."""
    if not 0 < epsilon < 1:
        raise InputError(f"epsilon = {epsilon}: must lie between 0 and 1")


def index_of(position: int, positions: Sequence[int]) -> int:
    """Where a position stands among the measured ones. Raises `InputError`, which names these, if it is not there."""
    if position in positions:
        return positions.index(position)
    known = f"{positions[0]} to {positions[-1]}" if len(positions) > 8 else ", ".join(map(str, positions)) or "none"
    raise InputError(f"position {position} was not measured; measured: {known}")


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
