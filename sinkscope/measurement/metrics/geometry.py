"""Where vectors lie: angles between subspaces, principal components, separation, alignment with the first token.

Rows with a NaN were not measured and do not count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from sinkscope.errors import InputError
from sinkscope.measurement.metrics.rates import first_over_rest, index_of
from sinkscope.statistics import nanmean


@dataclass(frozen=True, eq=False)
class PrincipalProjection:
    """Points in the coordinates of their principal components; NaN for those that were not measured.

    `shares`: each component's part of the variance around the mean, from 0 to 1.
    """

    points: Float[np.ndarray, "point component"]
    shares: Float[np.ndarray, "component"]


@dataclass(frozen=True, eq=False)
class SecondarySinks:
    """Tokens whose hidden state is aligned with the first token's while that one is large.

    `jump`, `drop`: first and last depth at which the first token is large, NaN in samples where it never is; `share`:
    part of the depths between these at which a token is aligned (0 to 1), 0 for the first token itself.
    """

    jump: Float[np.ndarray, "sample"]
    drop: Float[np.ndarray, "sample"]
    share: Float[np.ndarray, "sample position"]

    @property
    def found(self) -> Bool[np.ndarray, "sample position"]:
        """True for tokens that are aligned at one or more of these depths."""
        return self.share > 0


@dataclass(frozen=True, eq=False)
class KeyManifold:
    """Per (layer, head): the sink's keys against the subspace of all other keys.

    `angle`: in radians, from 0 (inside) to π/2; `chance`: the same for a random direction; `cosine`: of the mean sink
    key with the mean of the others.
    """

    angle: Float[np.ndarray, "layer head"]
    chance: Float[np.ndarray, "layer head"]
    cosine: Float[np.ndarray, "layer head"]


def principal_angles(
    a: Float[np.ndarray, "point width"], b: Float[np.ndarray, "other _"], dims: int = 8
) -> Float[np.ndarray, "angle"]:
    """Angles in radians, smallest first, between the subspaces spanned by two sets of vectors.

    Each subspace is spanned by the `dims` strongest right singular vectors of its set, about the origin and not the
    mean; a set of smaller rank spans its whole rank. There are min(dims, width) angles, NaN beyond the smaller
    subspace. θ_i = arccos σ_i, the singular values of Q_aᵀ Q_b (Björck & Golub 1973), where σ_i² > 1/2 from its sine,
    ‖Q_b v_i − Q_a Q_aᵀ Q_b v_i‖, which stays exact for small angles. Raises `InputError` for dims < 1 and for sets of
    different widths. Source: Gu et al. 2025, section 3.
    """
    if dims < 1 or a.shape[1] != b.shape[1]:
        raise InputError(
            f"principal angles of {dims} dimensions between vectors of width {a.shape[1]} and {b.shape[1]}: "
            "at least one dimension, and one width"
        )
    angles = np.full(min(dims, a.shape[1]), np.nan)
    one, other = _basis(_measured(a), dims), _basis(_measured(b), dims)
    # `other` is the smaller subspace: there is one angle for each of its directions.
    if one.shape[1] < other.shape[1]:
        one, other = other, one
    if other.shape[1]:
        _, cosines, right = np.linalg.svd(one.T @ other)
        vectors = other @ right.T
        sines = np.linalg.norm(vectors - one @ (one.T @ vectors), axis=0)
        cosines = np.clip(cosines, 0, 1)
        smallest = np.where(cosines**2 > 0.5, np.arcsin(np.clip(sines, 0, 1)), np.arccos(cosines))
        angles[: len(smallest)] = smallest
    return angles


def principal_components(vectors: Float[np.ndarray, "point width"], count: int = 2) -> PrincipalProjection:
    """Principal component analysis (Han et al. 2024): x − mean in the `count` directions of largest variance.

    A component's sign is such that its largest coordinate is positive. Components beyond the rank are 0.
    """
    known = ~np.isnan(vectors).any(1)
    points = np.full((len(vectors), count), np.nan)
    shares = np.zeros(count)
    if known.any():
        centered = vectors[known].astype(np.float64)
        centered -= centered.mean(0)
        # X = U S Vᵀ, so the coordinates X V are U S.
        left, strengths, _ = np.linalg.svd(centered, full_matrices=False)
        scores = (left * strengths)[:, :count]
        largest = np.abs(scores).argmax(0)
        scores = scores * np.where(scores[largest, np.arange(scores.shape[1])] < 0, -1, 1)
        points[known] = 0
        points[np.ix_(known, np.arange(count) < scores.shape[1])] = scores
        energy = strengths**2
        shares[: scores.shape[1]] = energy[:count] / (energy.sum() or 1)
    return PrincipalProjection(points, shares)


def separation(vectors: Float[np.ndarray, "sample position width"], position: int = 0) -> float:
    """Mean silhouette of the points at `position` against those at all other positions, −1 to 1 (Han et al. 2024).

    For a point i of the group, s_i = (b_i − a_i) / max(a_i, b_i): a_i is its mean Euclidean distance to the other
    points of the group, b_i that to the points outside it (Rousseeuw 1987). Positive: the group is separated. NaN with
    fewer than two points in the group or none outside; Rousseeuw counts a lone point as 0. `position`: an index along
    the second axis.
    """
    group = _measured(vectors[:, position])
    rest = _measured(np.delete(vectors, position, axis=1).reshape(-1, vectors.shape[-1]))
    if len(group) < 2 or not len(rest):
        return float("nan")
    scores = []
    for index, point in enumerate(group):
        within = np.linalg.norm(np.delete(group, index, axis=0) - point, axis=1).mean()
        outside = np.linalg.norm(rest - point, axis=1).mean()
        scores.append((outside - within) / (max(within, outside) or 1))
    return float(np.mean(scores))


def secondary_sinks(
    cos_hidden_first: Float[np.ndarray, "sample depth position"],
    hidden_norm: Float[np.ndarray, "sample depth position"],
    threshold: float = 0.9,
    least: float = 2.0,
) -> SecondarySinks:
    """Tokens t ≠ 0 with |cos(h_t, h_0)| > threshold at depths between the jump and the drop of the first token's norm.

    With r_l = ‖h_0‖ / mean over t ≠ 0 of ‖h_t‖ at depth l (Gu et al. 2025, section 3), the first token is large at the
    depths with r_l > max_l r_l / 2, of which the first is the jump and the last the drop, both counted: so thresholds
    are relative to the model and its depth. Samples whose ratio never exceeds `least` have no jump and no secondary
    sinks. The depths are those of one stack. Raises `InputError` for a threshold outside 0 to 1.
    """
    if not 0 < threshold < 1:
        raise InputError(f"threshold = {threshold}: a cosine between 0 and 1")
    samples, _, positions = cos_hidden_first.shape
    jump, drop = np.full(samples, np.nan), np.full(samples, np.nan)
    share = np.zeros((samples, positions))
    for sample, ratios in enumerate(np.nan_to_num(first_over_rest(hidden_norm))):
        if ratios.max() <= least:
            continue
        large = np.flatnonzero(ratios > ratios.max() / 2)
        jump[sample], drop[sample] = large[0], large[-1]
        between = np.abs(cos_hidden_first[sample, large[0] : large[-1] + 1])
        share[sample, 1:] = nanmean(np.nan_to_num(between[:, 1:]) > threshold, 0)
    return SecondarySinks(jump, drop, share)


def key_manifold(
    key_vectors: Float[np.ndarray, "kept layer head position dim"], position: int = 0, dims: int = 8
) -> KeyManifold:
    """The angle between the direction u of the sink's keys and the `dims` strongest directions of all other keys.

    u is the strongest singular direction of the keys at index `position`; the subspace holds the strongest right
    singular vectors of the keys elsewhere, about the origin (`principal_angles`). In a width of d a random direction is
    at arccos √(r / d) in the mean square, r the directions there are: that is `chance`, which a separated sink exceeds.
    NaN for heads without both kinds of keys. Source: Gu et al. 2025, section 3 (their claim; the statistic is ours).
    Raises `InputError` for a position that was not kept.
    """
    index_of(position, range(key_vectors.shape[3]))
    _, layers, heads, _, _ = key_vectors.shape
    angle, chance, cosine = (np.full((layers, heads), np.nan) for _ in range(3))
    for layer, head in np.ndindex(layers, heads):
        keys = _without_padding(key_vectors[:, layer, head])
        sink, others = _parted(keys, position)
        subspace = _subspace(others, dims)
        directions = subspace.shape[1]
        if len(sink) and directions:
            angle[layer, head] = _angle(_strongest(sink), subspace)
            chance[layer, head] = _chance(directions, keys.shape[-1])
            cosine[layer, head] = _cosine(sink.mean(0), others.mean(0))
    return KeyManifold(angle, chance, cosine)


def key_planes(key_vectors: Float[np.ndarray, "kept layer head position dim"]) -> list[list[PrincipalProjection]]:
    """All keys of each layer and head in their two principal components, by sample and then position, for plots.

    A few sink keys among many do not change these components, so a sink may be separated by its angle
    (`key_manifold`) and still lie among the others in this plane.
    """
    _, layers, heads, _, _ = key_vectors.shape
    kept = [[_without_padding(key_vectors[:, layer, head]) for head in range(heads)] for layer in range(layers)]
    return [[principal_components(keys.reshape(-1, keys.shape[-1]), 2) for keys in layer] for layer in kept]


def key_angles(keys: Float[np.ndarray, "sample position width"], dims: int = 8) -> Float[np.ndarray, "position"]:
    """How far a position's keys lie from those at all other positions: the mean angle of its single keys to the others'
    `dims` strongest directions, over that of a random direction.

    Above 1: further than a random direction. Angle and chance as in `key_manifold`, but for single keys: the strongest
    direction of varied keys is shared with all others, whether or not there is a sink. So a sink's angle is compared
    with those of tokens that are not sinks. NaN if a position or all others have no keys, or only keys of length 0.
    """
    real_keys = _without_padding(keys)
    angles = np.full(real_keys.shape[1], np.nan)
    for position in range(real_keys.shape[1]):
        here, others = _parted(real_keys, position)
        here = here[np.linalg.norm(here, axis=1) > 0]
        subspace = _subspace(others, dims)
        if len(here) and subspace.shape[1]:
            # The sine of the angle of a key k to a subspace with the basis B: ‖k − B Bᵀ k‖ / ‖k‖.
            outside = np.linalg.norm(here - here @ subspace @ subspace.T, axis=1) / np.linalg.norm(here, axis=1)
            angles[position] = np.arcsin(np.clip(outside, 0, 1)).mean() / _chance(subspace.shape[1], here.shape[1])
    return angles


def _subspace(others: Float[np.ndarray, "others width"], dims: int) -> Float[np.ndarray, "width dim"]:
    # At most half of the width: a subspace of all directions leaves no angle.
    return _basis(others, min(dims, max(1, others.shape[1] // 2)))


def _angle(direction: Float[np.ndarray, "1 width"], subspace: Float[np.ndarray, "width dim"]) -> float:
    """The angle of a unit vector u to a subspace with the basis B, from both sides: exact near 0 and near π/2."""
    inside = direction @ subspace
    outside = direction - inside @ subspace.T
    return float(np.arctan2(np.linalg.norm(outside), np.linalg.norm(inside)))


def _chance(directions: int, width: int) -> float:
    return float(np.arccos(np.sqrt(directions / width)))


def _parted(
    keys: Float[np.ndarray, "sample position width"], position: int
) -> tuple[Float[np.ndarray, "own width"], Float[np.ndarray, "others width"]]:
    """The keys at a position, and those elsewhere."""
    return _measured(keys[:, position]), _measured(np.delete(keys, position, axis=1).reshape(-1, keys.shape[-1]))


def _measured(vectors: Float[np.ndarray, "point width"]) -> Float[np.ndarray, "known width"]:
    return vectors[~np.isnan(vectors).any(1)].astype(np.float64)


def _basis(vectors: Float[np.ndarray, "point width"], dims: int) -> Float[np.ndarray, "width dim"]:
    """Orthonormal columns: the strongest right singular vectors, without those due to rounding."""
    if not vectors.size:
        return np.zeros((vectors.shape[1], 0))
    _, strengths, rows = np.linalg.svd(vectors, full_matrices=False)
    # The usual rule for a numerical rank, with the ε of fp32, in which the vectors were stored.
    rounding = strengths[0] * max(vectors.shape) * np.finfo(np.float32).eps
    return rows[: min(dims, int((strengths > rounding).sum()))].T


def _without_padding(keys: Float[np.ndarray, "kept position dim"]) -> Float[np.ndarray, "kept position width"]:
    """The dimensions of the head, because heads of unequal width share one array; all if it has no keys."""
    real = ~np.isnan(keys).all((0, 1))
    return keys[..., real] if real.any() else keys


def _strongest(vectors: Float[np.ndarray, "point width"]) -> Float[np.ndarray, "1 width"]:
    return np.linalg.svd(vectors, full_matrices=False)[2][:1]


def _cosine(one: Float[np.ndarray, "width"], other: Float[np.ndarray, "width"]) -> float:
    lengths = np.linalg.norm(one) * np.linalg.norm(other)
    return float(one @ other / lengths) if lengths else float("nan")
