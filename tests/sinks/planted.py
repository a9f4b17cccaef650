"""Attention with sinks that were put there, and what its tokens receive, from the definition."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def causal(tokens: int, window: int | None = None) -> np.ndarray:
    """Which keys each query sees, (query, key)."""
    ahead = np.arange(tokens)[:, None] - np.arange(tokens)
    return (ahead >= 0) & (ahead < (window or tokens))


def attention(seen: np.ndarray, sinks: Mapping[int, float]) -> np.ndarray:
    """Rows that give each sink its share where they see it, and the rest evenly to the other tokens that they see."""
    weights = np.zeros(seen.shape)
    for query, keys in enumerate(seen):
        visible = np.flatnonzero(keys)
        shares = {key: share for key, share in sinks.items() if keys[key]}
        others = [key for key in visible if key not in shares]
        if not others:  # a query that sees sinks alone
            shares = {key: share / sum(shares.values()) for key, share in shares.items()}
        weights[query, list(shares)] = list(shares.values())
        if others:
            weights[query, others] = (1 - sum(shares.values())) / len(others)
    return weights


def received(weights: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """α, the queries that see a token, and what uniform attention would give it, each (token,)."""
    visible = seen.sum(0).astype(float)
    uniform = (seen / np.maximum(seen.sum(1, keepdims=True), 1)).sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return weights.sum(0) / visible, visible, uniform / visible


def arrays(*heads: Mapping[int, float], seen: np.ndarray, samples: int = 1) -> tuple[np.ndarray, ...]:
    """(sample, layer, head, position) of one layer with these heads, with (sample, layer, position) twice."""
    found = [received(attention(seen, sinks), seen) for sinks in heads]
    alpha = np.stack([one[0] for one in found])[None, None].repeat(samples, 0)
    return alpha, *(np.asarray(found[0][part])[None, None].repeat(samples, 0) for part in (1, 2))
