"""Sink rates over epsilon and T, and attention received as mass and against uniform attention [C1, X7]."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from sinkscope.errors import InputError
from sinkscope.metrics.rates import sink_rate

EPSILONS = (0.1, 0.2, 0.3, 0.4, 0.5)


def sweep(
    received: Float[np.ndarray, "sample layer head length"], epsilons: Sequence[float] = EPSILONS
) -> Float[np.ndarray, "epsilon length"]:
    """Sink_k^eps in percent for every threshold and every number of tokens T, as in Gu et al., Fig. 3 [C1].

    `received`: alpha_k when only the first T tokens existed (`attention_received_by_length`). NaN for a T that no
    sample has. Never increases with epsilon. Raises `InputError` for an epsilon outside (0, 1).
    """
    if not len(epsilons):
        raise InputError("no epsilon to sweep over: give one or more between 0 and 1")
    return np.stack([sink_rate(received, epsilon) for epsilon in epsilons])


def mass_on_first(
    received: Float[np.ndarray, "sample layer head position"],
    tokens: Int[np.ndarray, "sample layer"],
    causal: Bool[np.ndarray, "layer"],
    count: int = 4,
) -> Float[np.ndarray, "sample layer head"]:
    """Mean over a row's queries of the attention on its first `count` tokens, from 0 to 1.

    Σ_{k < n} alpha_k (T − k) / T in causal layers, as k is seen by T − k of the T queries; Σ_{k < n} alpha_k in
    bidirectional ones. `received`: alpha_k of C1 from position 0 on, without gaps; `tokens`: T. In rows that are
    shorter, all their tokens; NaN where position 0 was not measured. Raises `InputError` where fewer positions were.
    """
    if not 1 <= count <= received.shape[-1]:
        raise InputError(f"mass on the first {count} positions: {received.shape[-1]} were measured, from position 0 on")
    positions = np.arange(count)
    length = tokens[..., None].astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        seeing = np.where(causal[None, :, None], (length - positions) / length, 1.0)
    mass = np.nansum(received[..., :count] * seeing[:, :, None], -1)
    return np.where(np.isnan(received[..., 0]), np.nan, mass)


def boost(
    received: Float[np.ndarray, "sample layer head position"], uniform: Float[np.ndarray, "sample layer position"]
) -> Float[np.ndarray, "sample layer head position"]:
    """alpha_k over the alpha_k that uniform attention under the same mask would give: 1 is no preference.

    NaN where no query sees the key. The last positions of a causal layer rest on few queries, the first of a text are
    seen by rows with few keys: uniform attention accounts for both.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = received / uniform[:, :, None]
    return np.where(uniform[:, :, None] > 0, ratio, np.nan)
