"""Arrays as short JSON: few digits, None for missing values, and few enough points for one page."""

from __future__ import annotations

from typing import Any

import numpy as np

DIGITS = 4


def short(values: np.ndarray, digits: int = DIGITS) -> Any:
    """Nested lists of numbers with `digits` significant digits; NaN and infinities, which JSON lacks, are None."""
    finite = np.isfinite(values)
    known = np.where(finite & (values != 0), values, 1.0).astype(np.float64)
    places = digits - 1 - np.floor(np.log10(np.abs(known)))
    grain = 10.0 ** np.abs(places)
    # Dividing by a power of ten gives the double nearest to the decimal, whose text is short; multiplying does not.
    rounded = np.where(places >= 0, np.round(known * grain) / grain, np.round(known / grain) * grain)
    result = np.where(values == 0, 0.0, rounded).astype(object)
    result[~finite] = None
    return result.tolist()


def few(positions: np.ndarray, most: int, keep: tuple[int, ...] = ()) -> np.ndarray:
    """Indices of about `most` positions: all of the first half of these, then wider and wider apart, and those to keep.

    No position at the start of a text is left out, since sinks form there.
    """
    count = len(positions)
    if count <= most:
        return np.arange(count)
    dense = most // 2
    sparse = np.geomspace(dense, count - 1, most - dense).round().astype(int)
    kept = np.flatnonzero(np.isin(positions, keep))
    return np.unique(np.concatenate([np.arange(dense), sparse, kept]))
