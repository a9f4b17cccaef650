"""Rank correlation over many rows at once, ignoring NaN."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

__all__ = [
    "rank_correlation",
    "ranks",
]


def ranks(values: Float[np.ndarray, "*rows n"]) -> Float[np.ndarray, "*rows n"]:
    """Ranks from 1 along the last axis; ties get their mean rank; NaN stays NaN."""
    flat = values.reshape(-1, values.shape[-1]).astype(np.float64)
    order = np.argsort(flat, axis=1, kind="stable")  # NaN last
    ordered = np.take_along_axis(flat, order, 1)
    places = np.broadcast_to(np.arange(flat.shape[1]), flat.shape)
    # Ties are runs of equal values: `first` and `last` are the ends of each value's run. NaN differs from NaN, so each
    # is a run of its own.
    differs = ordered[:, 1:] != ordered[:, :-1]
    ends = np.ones((len(flat), 1), dtype=bool)
    first = np.maximum.accumulate(np.where(np.hstack([ends, differs]), places, 0), 1)
    last = np.where(np.hstack([differs, ends]), places, flat.shape[1])
    last = np.minimum.accumulate(last[:, ::-1], 1)[:, ::-1]
    ranked = np.empty_like(flat)
    np.put_along_axis(ranked, order, (first + last) / 2 + 1, 1)
    return np.where(np.isnan(values), np.nan, ranked.reshape(values.shape))


def rank_correlation(
    one: Float[np.ndarray, "*rows n"], other: Float[np.ndarray, "*rows n"]
) -> Float[np.ndarray, "*rows"]:
    """Spearman's ρ along the last axis: Pearson's correlation of the ranks, −1 to 1.

    Only entries without NaN on either side count. NaN for fewer than three of them, or if one side is constant.
    """
    known = ~np.isnan(one) & ~np.isnan(other)
    count = known.sum(-1)
    # Ranks among the entries that both sides have: those over one side's entries would have gaps.
    sides = [_centered(ranks(np.where(known, side, np.nan)), known) for side in (one, other)]
    product, first, second = ((a * b).sum(-1) for a, b in ((sides[0], sides[1]), *((side, side) for side in sides)))
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = product / np.sqrt(first * second)
    return np.where((count >= 3) & (first > 0) & (second > 0), np.clip(correlation, -1, 1), np.nan)


def _centered(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Differences from the mean of the known entries, 0 elsewhere."""
    filled = np.where(known, values, 0.0)
    mean = filled.sum(-1, keepdims=True) / np.maximum(known.sum(-1, keepdims=True), 1)
    return np.where(known, filled - mean, 0.0)
