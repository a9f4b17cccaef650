"""How a head forms and uses its sink: value drain, angle versus norm, and its output.

Source: Gu et al. 2025, sections 3 and 7; Bondarenko et al. 2023; Guo et al. 2024b.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from sinkscope.errors import InputError
from sinkscope.measurement.metrics.rates import check_epsilon, exceeds, index_of, mean_elsewhere, over_others
from sinkscope.statistics import nanmean
from sinkscope.statistics.ranks import rank_correlation

PerHead = Float[np.ndarray, "sample layer head"]
PerToken = Float[np.ndarray, "sample layer head position"]

NO_OP, BROADCAST, ACTIVE = "no-op", "broadcast", "active"


@dataclass(frozen=True, eq=False)
class AngleSplit:
    """q·k = ‖q‖ ‖k‖ cos(q, k) in its parts, per (layer, head), at the sink and elsewhere, averaged over samples."""

    cos_sink: Float[np.ndarray, "layer head"]
    cos_others: Float[np.ndarray, "layer head"]
    key_sink: Float[np.ndarray, "layer head"]
    key_others: Float[np.ndarray, "layer head"]
    query: Float[np.ndarray, "layer head"]


def value_drain_correlation(received: PerToken, value_norm: PerToken) -> PerHead:
    """Spearman's ρ over a row's tokens of alpha_k with ‖v_k‖: negative if attended tokens have small values. NaN if
    either is constant or fewer than three tokens have both. Source: Bondarenko et al. 2023; Guo et al. 2024b.
    """
    return rank_correlation(received, value_norm)


def angle_split(cos_query_key: PerToken, key_norm: PerToken, query_norm: PerToken, position: int = 0) -> AngleSplit:
    """Whether the angle or the norm makes the sink. Source: Gu et al. 2025, section 3.

    cos_sink: mean over queries t ≠ s of cos(q_t, k_s); cos_others: mean over keys j ≠ s of that mean for k_j; key_sink:
    ‖k_s‖; key_others: mean of ‖k_j‖; query: mean of ‖q_t‖ over t ≠ s. s is the index `position`; NaN without such a
    token. Raises `InputError` for a position that was not measured.
    """
    index_of(position, range(cos_query_key.shape[-1]))
    return AngleSplit(
        cos_sink=nanmean(cos_query_key[..., position], 0),
        cos_others=nanmean(mean_elsewhere(cos_query_key, position), 0),
        key_sink=nanmean(key_norm[..., position], 0),
        key_others=nanmean(mean_elsewhere(key_norm, position), 0),
        query=nanmean(mean_elsewhere(query_norm, position), 0),
    )


def dormant(output_norm: PerToken, threshold: float = 0.1) -> Bool[np.ndarray, "layer head"]:
    """True for heads that write almost nothing: mean ‖o_t‖ < threshold · the mean over their layer's heads.

    Means over a row's tokens and then samples. A head that a layer does not have is not dormant. Raises `InputError`
    for a threshold outside (0, 1). Source: Gu et al. 2025, section 7.
    """
    if not 0 < threshold < 1:
        raise InputError(f"threshold = {threshold}: a share of the layer's mean output norm, between 0 and 1")
    mean = nanmean(nanmean(output_norm, -1), 0)
    return mean < threshold * nanmean(mean, 1)[:, None]


def value_ratio(value_norm: PerToken, position: int = 0) -> PerHead:
    """‖v_s‖ / mean over k ≠ s of ‖v_k‖ per head; NaN where all others are zero or none exists.

    Source: Gu et al. 2025, section 3.
    """
    index_of(position, range(value_norm.shape[-1]))
    return over_others(value_norm, position)


def head_kinds(
    received: PerToken,
    value_norm: PerToken,
    output_rank_one: PerHead,
    position: int = 0,
    *,
    epsilon: float = 0.3,
    drained: float = 0.25,
    rank_one: float = 0.8,
) -> np.ndarray:
    """What each head does with a sink at index `position`, an array (layer, head) of names; from means over samples.

    "no-op": a sink head, alpha_s > epsilon, whose value there is small, ‖v_s‖ < drained · mean of the others: attending
    to it writes almost nothing. "broadcast": a sink head with a larger value and an output of one direction,
    `output_rank_one` > rank_one: it writes the same to every token. "active": every other head. "" for a head that a
    layer does not have, or if a deciding number is NaN. Source: the two uses of a sink in Guo et al. 2024a; thresholds
    ours.

    Args:
        received: α, attention received, from 0 to 1.
        value_norm: ‖v‖₂.
        output_rank_one: Share of the outputs' energy along their main direction, 0 to 1.
        position: Index s along the last axis.
        epsilon: Share of attention above which a head is a sink head.
        drained: Largest ‖v_s‖ of a no-op, relative to the other tokens.
        rank_one: Smallest `output_rank_one` of a broadcast.

    Raises `InputError` for thresholds outside (0, 1), and for a position that was not measured.
    """
    check_epsilon(epsilon)
    index_of(position, range(received.shape[-1]))
    if not 0 < drained < 1 or not 0 < rank_one < 1:
        raise InputError(f"drained = {drained}, rank_one = {rank_one}: both are shares between 0 and 1")
    alpha = nanmean(received[..., position], 0)
    sink = exceeds(alpha, epsilon) == 1
    value, direction = nanmean(value_ratio(value_norm, position), 0), nanmean(output_rank_one, 0)
    # A drained value decides alone; the direction of the output is needed only where the value is not drained.
    unknown = np.isnan(alpha) | (sink & (np.isnan(value) | (~(value < drained) & np.isnan(direction))))
    return np.select([unknown, sink & (value < drained), sink & (direction > rank_one)], ["", NO_OP, BROADCAST], ACTIVE)
