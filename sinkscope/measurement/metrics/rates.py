"""Metrics as pure functions of stored statistics. Arrays are numpy; NaN marks what was not measured and never counts.

Order of averaging: heads of a layer, then layers, then samples, so that a layer counts once however many heads it has.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from sinkscope.errors import InputError
from sinkscope.sinks import check_epsilon, exceeds
from sinkscope.statistics import nanmean

EPSILONS = (0.1, 0.2, 0.3, 0.4, 0.5)
LOWER = 0.1  # the threshold above which mass counts
BEHIND = 3  # following positions with which a step compares


def index_of(position: int, positions: Sequence[int]) -> int:
    """The index of a position among the measured ones. Raises `InputError`, naming these, if it was not measured."""
    if position in positions:
        return positions.index(position)
    known = f"{positions[0]} to {positions[-1]}" if len(positions) > 8 else ", ".join(map(str, positions)) or "none"
    raise InputError(f"position {position} was not measured; measured: {known}")


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
    """Sink_k^eps = 100 · mean over samples, layers and heads of [alpha_k > eps]. Source: Gu et al. 2025, section 3.

    The indicator is taken per sample, layer and head and then averaged, never the other way round. A layer counts once,
    however many heads it has.
    """
    is_sink = exceeds(received, epsilon)  # 1, 0, or NaN where alpha was not measured
    layers = nanmean(is_sink, axis=2)
    samples = nanmean(100 * layers, axis=1)
    return nanmean(samples, axis=0)


def sink_mass(
    received: Float[np.ndarray, "sample layer head position"], lower: float = LOWER
) -> Float[np.ndarray, "position"]:
    """∫_lower^1 Sink_k^eps d eps = 100 · mean over samples, layers and heads of (min(alpha_k, 1) − lower)₊, in percent.

    Sink_k^eps counts heads, so in a model of 16 heads with one or two sinks it takes few values. The mass is
    continuous, and its only threshold is `lower`, below which nearly uniform attention stays. With lower = 0 it would
    be the mean attention on k. Our integral of the metric of Gu et al. 2025, section 3. Raises `InputError` for a lower
    outside (0, 1).
    """
    check_epsilon(lower)
    above = np.clip(received, lower, 1.0) - lower
    return 100 * nanmean(nanmean(nanmean(above, 2), 1), 0)


def step(received: Float[np.ndarray, "sample layer head position"]) -> Float[np.ndarray, "position"]:
    """ᾱ_k / mean of ᾱ_{k+1}, ᾱ_{k+2}, ᾱ_{k+3}, where ᾱ is the mean over samples, layers and heads; no unit.

    How far a position exceeds the next ones, which nearly as many queries see: causal uniform attention gives 1.4 at
    position 0 of 64 tokens, because the first query sees nothing else. NaN at the last three positions, and if the
    following ones receive nothing. `received`: at adjacent positions. Ours. Training logs and records of experiments
    store it as `lift`.
    """
    mean = nanmean(nanmean(nanmean(received, 2), 1), 0)
    ratio = np.full(mean.shape, np.nan)
    for position in range(len(mean) - BEHIND):
        behind = mean[position + 1 : position + 1 + BEHIND].mean()
        ratio[position] = mean[position] / behind if behind > 0 else np.nan
    return ratio


def paper_slot(
    slot: Float[np.ndarray, "sample layer head"], tokens: Int[np.ndarray, "sample layer"]
) -> Float[np.ndarray, "sample layer head"]:
    """(T · slot + 1) / (T + 1): the slot's mass as the paper's code counts it (Gu et al. 2025, Table 4).

    There an extra zero query comes first, with all its attention on the slot, and is counted.
    """
    return (tokens[..., None] * slot + 1) / (tokens[..., None] + 1)


def mean_elsewhere(values: Float[np.ndarray, "*shape position"], index: int) -> Float[np.ndarray, "*shape"]:
    """The mean along the last axis over all positions but the one at `index`; NaN does not count."""
    return nanmean(np.delete(values, index, axis=-1), -1)


def over_others(lengths: Float[np.ndarray, "*shape position"], index: int) -> Float[np.ndarray, "*shape"]:
    """‖x_s‖ / mean over t ≠ s of ‖x_t‖ along the last axis, s at `index`: the one ratio of norms.

    NaN where all others are zero or none exists. Source: Gu et al. 2025, section 3.
    """
    rest = mean_elsewhere(lengths, index)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(rest > 0, lengths[..., index] / rest, np.nan)


def first_over_rest(lengths: Float[np.ndarray, "*shape position"]) -> Float[np.ndarray, "*shape"]:
    """`over_others` for the first position; NaN with fewer than two tokens."""
    return over_others(lengths, 0)


def sweep(
    received: Float[np.ndarray, "sample layer head length"], epsilons: Sequence[float] = EPSILONS
) -> Float[np.ndarray, "epsilon length"]:
    """Sink_k^eps in percent for every threshold and every number of tokens T, as in Gu et al. 2025, Fig. 3.

    `received`: alpha_k when only the first T tokens existed (`attention_received_by_length`). NaN for a T that no
    sample has. Never increases with epsilon. Raises `InputError` for an epsilon outside (0, 1).
    """
    if not len(epsilons):
        raise InputError("no epsilon to sweep over: give one or more between 0 and 1")
    return np.stack([sink_rate(received, epsilon) for epsilon in epsilons])


def mass_on_first(
    received: Float[np.ndarray, "sample layer head position"],
    visible: Float[np.ndarray, "sample layer position"],
    queries: Int[np.ndarray, "sample layer"],
    count: int = 4,
) -> Float[np.ndarray, "sample layer head"]:
    """Mean over a row's queries of the attention on its first `count` tokens, from 0 to 1: Σ_{k < n} alpha_k v_k / T.

    `received`: alpha_k from position 0 on, without gaps; `visible`: v_k, how many queries see k, NaN after a row's
    last token; `queries`: T. Shorter rows count all their tokens; NaN if one of these was not measured. Raises
    `InputError` if fewer positions were measured.
    """
    if not 1 <= count <= received.shape[-1]:
        raise InputError(f"mass on the first {count} positions: {received.shape[-1]} were measured, from position 0 on")
    with np.errstate(divide="ignore", invalid="ignore"):
        seeing = visible[..., :count] / queries[..., None]
    mass = np.nansum(received[..., :count] * seeing[:, :, None], -1)
    there = ~np.isnan(visible[..., :count])
    # A row without tokens was not measured; without this it would have a mass of 0.
    there[..., 0] = True
    missing = np.isnan(received[..., :count]) & there[:, :, None]
    return np.where(missing.any(-1), np.nan, mass)


def lift(
    received: Float[np.ndarray, "sample layer head position"], uniform: Float[np.ndarray, "sample layer position"]
) -> Float[np.ndarray, "sample layer head position"]:
    """alpha_k over the alpha_k that uniform attention under the same mask would give: 1 means no preference. NaN where
    no query sees the key. Few queries see the last positions of a causal layer, and the first positions are seen by
    rows with few keys: uniform attention accounts for both.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = received / uniform[:, :, None]
    return np.where(uniform[:, :, None] > 0, ratio, np.nan)


DIGITS = 6  # decimals; equal numbers may differ by fp32 rounding or summation order


def comparable(
    visible: Float[np.ndarray, "*rows position"], most: Int[np.ndarray, "*rows"] | Float[np.ndarray, "*rows"]
) -> Bool[np.ndarray, "*rows position"]:
    """True at positions seen by more than half as many queries as the key seen by `most`.

    `visible`: how many queries see each, NaN after the last token. In a plain causal layer of T tokens these are the k
    < T / 2, in a bidirectional layer all, under a window all except the last half window. The last positions average
    over few queries, and the very last is one token's attention to itself, so that exceeding a threshold means nothing
    there.
    """
    return visible > most[..., None] / 2


def strongest(rates: Float[np.ndarray, "position"], mass: Float[np.ndarray, "position"]) -> int | None:
    """Index of the highest sink rate; at equal rates, of the largest share of all attention; then of the first.

    `rates` in percent, NaN at positions that are not candidates (`comparable`); `mass`: mean over all queries of the
    weight on the position, 0 for queries that do not see it. None without a candidate.
    """
    known = ~np.isnan(rates)
    if not known.any():
        return None
    best = np.where(known, rates, -np.inf).round(DIGITS)
    return int(np.where(best == best.max(), np.nan_to_num(mass).round(DIGITS), -np.inf).argmax())
