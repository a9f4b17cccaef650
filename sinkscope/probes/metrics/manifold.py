"""Whether the key of the sink lies where the other keys do [C2]."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from sinkscope.errors import InputError
from sinkscope.probes.metrics.geometry import Projection, principal_angles, principal_components


@dataclass(frozen=True, eq=False)
class KeyManifold:
    """Per (layer, head): the sink's keys against the subspace of all other keys.

    `angle`: in radians, from 0 (inside) to π/2; `chance`: the same for a random direction; `cosine`: of the mean sink
    key with the mean of the others; `plane[layer][head]`: all keys in their two principal components, sample after
    sample and position after position, to be looked at. A few sink keys among many do not turn these components, so a
    sink may stand apart by its angle and still lie among the others in this plane.
    """

    angle: Float[np.ndarray, "layer head"]
    chance: Float[np.ndarray, "layer head"]
    cosine: Float[np.ndarray, "layer head"]
    plane: list[list[Projection]]


def key_manifold(
    key_vectors: Float[np.ndarray, "kept layer head position dim"], position: int = 0, dims: int = 8
) -> KeyManifold:
    """The angle between the direction u of the sink's keys and the `dims` strongest directions of all other keys [C2].

    u is the strongest singular direction of the keys at index `position`; the subspace holds the strongest right
    singular vectors of the keys elsewhere, about the origin (`principal_angles`). In a width of d a random direction is
    at arccos √(r / d) in the mean square, r the directions there are: that is `chance`, to be exceeded by a sink that
    lives elsewhere. NaN for heads without both kinds of keys. Source: Gu et al., section 3 (their claim; the statistic
    is ours). Raises `InputError` for a position that was not kept.
    """
    if not 0 <= position < key_vectors.shape[3]:
        raise InputError(f"key {position} of {key_vectors.shape[3]} that were kept: there is none such")
    _, layers, heads, _, _ = key_vectors.shape
    angle, chance, cosine = (np.full((layers, heads), np.nan) for _ in range(3))
    plane = []
    for layer in range(layers):
        own = [_without_padding(key_vectors[:, layer, head]) for head in range(heads)]
        plane.append([principal_components(keys.reshape(-1, keys.shape[-1]), 2) for keys in own])
        for head, keys in enumerate(own):
            width = keys.shape[-1]
            sink, others = _known(keys[:, position]), _known(np.delete(keys, position, axis=1).reshape(-1, width))
            if len(sink) and len(others):
                directions = min(dims, len(others), max(1, width // 2))
                angle[layer, head] = principal_angles(_strongest(sink), others, directions)[0]
                chance[layer, head] = np.arccos(np.sqrt(directions / width))
                cosine[layer, head] = _cosine(sink.mean(0), others.mean(0))
    return KeyManifold(angle, chance, cosine, plane)


def _without_padding(keys: Float[np.ndarray, "kept position dim"]) -> Float[np.ndarray, "kept position width"]:
    """The dimensions that the head has: heads of unequal width share one array. All of them where it has no keys."""
    own = ~np.isnan(keys).all((0, 1))
    return keys[..., own] if own.any() else keys


def _known(vectors: Float[np.ndarray, "point width"]) -> Float[np.ndarray, "known width"]:
    return vectors[~np.isnan(vectors).any(1)].astype(np.float64)


def _strongest(vectors: Float[np.ndarray, "point width"]) -> Float[np.ndarray, "1 width"]:
    return np.linalg.svd(vectors, full_matrices=False)[2][:1]


def _cosine(one: Float[np.ndarray, "width"], other: Float[np.ndarray, "width"]) -> float:
    lengths = np.linalg.norm(one) * np.linalg.norm(other)
    return float(one @ other / lengths) if lengths else float("nan")
