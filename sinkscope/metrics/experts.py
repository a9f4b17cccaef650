"""Super experts, from the peaks of all experts."""

from __future__ import annotations

import numpy as np
import pandas as pd
from jaxtyping import Float

from sinkscope.metrics.statistics import nanmean, quiet


def super_experts(
    peaks: Float[np.ndarray, "sample moe_layer expert"],
    layers: list[str],
    *,
    quantile: float = 0.995,
    share: float = 0.1,
) -> pd.DataFrame:
    """Experts whose peak, the maximum over samples, reaches the `quantile` of all peaks and exceeds `share` of the top.

    Columns: layer (path of the expert module), expert, peak, mean (of the samples' peaks), times_median (over the
    median expert of the model: with few experts the largest always is in the quantile, so look here). Source: Su et al.
    2025, "Unveiling Super Experts", whose rule has a third part, that the layer lies where massive activations form:
    `massive_entries` says where.
    """
    with quiet():
        largest, mean = np.nanmax(peaks, 0), nanmean(peaks, 0)
        border, typical = np.nanquantile(largest, quantile), np.nanmedian(largest)
        top = np.nanmax(largest)
    chosen = np.argwhere((largest >= border) & (largest > share * top))
    rows = [
        {
            "layer": layers[layer],
            "expert": int(expert),
            "peak": float(largest[layer, expert]),
            "mean": float(mean[layer, expert]),
            "times_median": float(largest[layer, expert] / typical),
        }
        for layer, expert in chosen
    ]
    columns = ["layer", "expert", "peak", "mean", "times_median"]
    return pd.DataFrame(rows, columns=columns).sort_values("peak", ascending=False, ignore_index=True)
