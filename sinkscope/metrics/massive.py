"""Massive activations: which entries of the residual stream are, and from which depth to which [X8]."""

from __future__ import annotations

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from sinkscope.errors import InputError

ENTRY = ["position", "dimension"]


def is_massive(
    top: Float[np.ndarray, "*shape top"],
    median: Float[np.ndarray, "*shape"],
    *,
    magnitude: float = 100.0,
    ratio: float = 1000.0,
) -> Bool[np.ndarray, "*shape top"]:
    """|h| > magnitude and |h| ≥ ratio · median |h| of the row at that depth: both criteria of Sun et al. 2024 [X8].

    `top`: `hidden_top`, `median`: `hidden_median`. False where nothing was measured. Raises `InputError` for thresholds
    that are not positive.
    """
    if not (magnitude > 0 and ratio > 0):
        raise InputError(f"magnitude = {magnitude}, ratio = {ratio}: thresholds of massive activations are positive")
    with np.errstate(over="ignore"):  # an infinite bound is right where activations all but overflow
        return (np.abs(top) > magnitude) & (np.abs(top) >= ratio * median[..., None])


def massive_entries(
    top: Float[np.ndarray, "sample depth top"],
    position: Float[np.ndarray, "sample depth top"],
    dimension: Float[np.ndarray, "sample depth top"],
    median: Float[np.ndarray, "sample depth"],
    *,
    magnitude: float = 100.0,
    ratio: float = 1000.0,
) -> pd.DataFrame:
    """One row for each (depth, position, dimension) that is massive in any sample, most frequent and largest first.

    Columns: `depth` (index along that axis), `position`, `dimension`, `samples` (share of the samples measured at that
    depth in which it is massive, 0 to 1), `value` (signed mean over those), `over_median` (mean of |h| / median; inf
    where the median is 0). At most as many entries of a sample are known as `MassiveActivations.top` kept.
    """
    hits = is_massive(top, median, magnitude=magnitude, ratio=ratio)
    samples, depths, _ = np.nonzero(hits)
    with np.errstate(divide="ignore"):
        over_median = np.abs(top[hits]) / median[samples, depths]
    found = pd.DataFrame(
        {
            "depth": depths,
            "position": position[hits].astype(int),
            "dimension": dimension[hits].astype(int),
            "value": top[hits].astype(float),
            "over_median": over_median.astype(float),
        }
    )
    entries = found.groupby(["depth", *ENTRY], as_index=False).agg(
        samples=("value", "size"), value=("value", "mean"), over_median=("over_median", "mean")
    )
    measured = (~np.isnan(median)).sum(0)
    entries["samples"] = entries["samples"] / measured[entries["depth"].to_numpy(int)]
    order = entries.assign(size=entries["value"].abs()).sort_values(
        ["depth", "samples", "size"], ascending=[True, False, False], kind="stable"
    )
    return entries.loc[order.index, ["depth", *ENTRY, "samples", "value", "over_median"]].reset_index(drop=True)


def massive_lives(entries: pd.DataFrame, depths: int, least: float = 0.0) -> pd.DataFrame:
    """One row for each (position, dimension) of `massive_entries`: where it begins, peaks and ends, largest first.

    `entries`: of one stack of `depths` depths, of which those in more than `least` of the samples count. Columns:
    `position`, `dimension`, `onset` and `last` (first and last depth at which it is massive), `decay` (the depth after
    the last, NaN where it lasts to the end), `peak` (depth of the largest mean), and there `samples`, `value`,
    `over_median`.
    """
    counted = entries[entries["samples"] > least]
    spans = counted.groupby(ENTRY).agg(onset=("depth", "min"), last=("depth", "max"))
    sizes = counted["value"].abs().sort_values(ascending=False, kind="stable")
    peaks = counted.loc[sizes.index].drop_duplicates(ENTRY).rename(columns={"depth": "peak"})
    lives = peaks.join(spans, on=ENTRY)
    lives["decay"] = (lives["last"] + 1.0).where(lives["last"] + 1 < depths)
    columns = [*ENTRY, "onset", "last", "decay", "peak", "samples", "value", "over_median"]
    return lives[columns].reset_index(drop=True)
