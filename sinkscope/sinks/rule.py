"""The rule: which tokens are sinks of a head. Arrays in, arrays out; nothing else compares α with ε.

α_k = Σ_t A[t, k] / (queries that see k); the share that uniform attention under the same masks would give is u_k, and
α_k / u_k is the lift. A *rate* (Gu et al. 2025) counts heads by α > ε alone: `exceeds`. To *choose* tokens that are
then protected, hidden or replaced takes more: the last token of a text has α = A[T, T], the attention of one query to
itself, and in a window of four uniform attention alone gives every token 0.25.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from sinkscope.errors import InputError
from sinkscope.statistics import nanmean, quiet

EPSILON = 0.3
FEWEST = 17  # queries that must see a token before its α counts, if a text has that many
LIFT = 2.0


def check_epsilon(epsilon: float) -> None:
    """Raises `InputError` unless 0 < epsilon < 1."""
    if not isinstance(epsilon, Real) or not 0 < epsilon < 1:
        raise InputError(f"epsilon = {epsilon!r}: must lie between 0 and 1")


def exceeds(received: Float[np.ndarray, "*shape"], epsilon: float) -> Float[np.ndarray, "*shape"]:
    """1 where α > ε (strictly), 0 elsewhere, NaN where α was not measured: the indicator of a sink rate."""
    check_epsilon(epsilon)
    return np.where(np.isnan(received), np.nan, (received > epsilon).astype(np.float64))


def chosen(received: Any, visible: Any, uniform: Any, most: Any, epsilon: float = EPSILON) -> Any:
    """α > ε, at least min(17, N) queries see the token, and α / u ≥ 2: elementwise, for numpy and torch alike.

    All arguments broadcast against each other. Where α or a count is NaN, nothing is chosen.

    Args:
        received: α, attention received, 0 to 1.
        visible: Number of queries that see the token.
        uniform: u, what uniform attention would give it.
        most: N, the most queries that see any token of the same document in the same layer.
        epsilon: ε, between 0 and 1.
    """
    check_epsilon(epsilon)
    # ≥ min(17, N), by comparisons alone: numpy arrays and torch tensors have them in common.
    enough = (visible >= FEWEST) | (visible >= most)
    return (received > epsilon) & enough & (visible > 0) & (received >= LIFT * uniform)


def counted(visible: Float[np.ndarray, "*place position"]) -> Bool[np.ndarray, "*place position"]:
    """Whether at least min(17, N) queries see each position, N being the most that see any of the row."""
    with np.errstate(invalid="ignore"):
        return ((visible >= FEWEST) | (visible >= _most(visible))) & (visible > 0)


def by_row(
    received: Float[np.ndarray, "sample layer head position"],
    visible: Float[np.ndarray, "sample layer position"],
    uniform: Float[np.ndarray, "sample layer position"],
    epsilon: float = EPSILON,
) -> Bool[np.ndarray, "sample layer head position"]:
    """The sinks of every head in every sample, each by its own α."""
    wide = visible[:, :, None]
    with np.errstate(invalid="ignore"):
        return np.asarray(chosen(received, wide, uniform[:, :, None], _most(wide), epsilon))


def means_by_position(
    received: Float[np.ndarray, "sample layer head position"],
    visible: Float[np.ndarray, "sample layer position"],
    uniform: Float[np.ndarray, "sample layer position"],
) -> tuple[
    Float[np.ndarray, "layer head position"], Float[np.ndarray, "layer position"], Bool[np.ndarray, "layer position"]
]:
    """The means of α and u over samples, and which of them count.

    Means are over samples in which enough queries see the position; these must be at least half of the samples that
    have the position. Otherwise a position that only the longest text reaches would be judged by that text alone.
    """
    counts = counted(visible)
    present = (visible > 0).sum(0)
    often = (2 * counts.sum(0) >= present) & (present > 0)
    mean = nanmean(np.where(counts[:, :, None], received, np.nan), 0)
    flat = nanmean(np.where(counts, uniform, np.nan), 0)
    return mean, flat, often


def by_position(
    received: Float[np.ndarray, "sample layer head position"],
    visible: Float[np.ndarray, "sample layer position"],
    uniform: Float[np.ndarray, "sample layer position"],
    epsilon: float = EPSILON,
) -> Bool[np.ndarray, "layer head position"]:
    """The positions that are sinks of every head, by the means of α and u over samples: `means_by_position`."""
    mean, flat, often = means_by_position(received, visible, uniform)
    with np.errstate(invalid="ignore"):
        # The means are already over samples with enough queries, so `often` takes the place of the count: 1 of 1, or 0.
        return np.asarray(chosen(mean, often[:, None].astype(float), flat[:, None], 1.0, epsilon))


def by_id(
    received: Float[np.ndarray, "sample layer head position"],
    visible: Float[np.ndarray, "sample layer position"],
    uniform: Float[np.ndarray, "sample layer position"],
    ids: Int[np.ndarray, "sample position"],
    epsilon: float = EPSILON,
) -> list[int]:
    """The token ids that are sinks of some head, by means over all occurrences.

    As `by_position`, with occurrences in place of samples. Arguments as in `chosen`; `ids`: token ids, −1 where there
    is none.
    """
    counts = counted(visible)
    rows = []
    for token in np.unique(ids[ids >= 0]).tolist():
        here = (ids == token)[:, None, :]
        seen = counts & here
        often = 2 * seen.sum((0, 2)) >= ((visible > 0) & here).sum((0, 2))
        mean = _mean_over(received, seen[:, :, None])
        flat = _mean_over(uniform[:, :, None], seen[:, :, None])
        with np.errstate(invalid="ignore"):
            if bool(np.asarray(chosen(mean, often[:, None].astype(float), flat, 1.0, epsilon)).any()):
                rows.append(int(token))
    return rows


def _mean_over(values: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Mean over samples and positions, (layer, head)."""
    with quiet():
        return np.asarray(np.nanmean(np.where(where, values, np.nan), (0, -1)))


def _most(visible: np.ndarray) -> np.ndarray:
    with quiet():
        return np.asarray(np.nanmax(visible, -1, keepdims=True)) if visible.shape[-1] else visible
