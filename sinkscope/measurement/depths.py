"""A measurement by depth: the residual stream from the embedding to the last block."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.errors import InputError
from sinkscope.measurement import metrics
from sinkscope.measurement.rates import hidden_norm_ratio
from sinkscope.measurement.selection import depth_lengths, has_position, need

AVERAGED = (
    "kurtosis",
    "kurtosis_neurons",
    "max_median_ratio",
    "matrix_entropy",
    "hidden_spread",
    "last_pair_distance",
)
TOP = ("hidden_top", "hidden_top_position", "hidden_top_dimension", "hidden_median")


def depth_table(data: xr.Dataset) -> pd.DataFrame:
    """See `Measurement.depths`."""
    if "depth" not in data.dims:
        raise InputError("this measurement has nothing by depth: no observer of the residual stream ran")
    table = pd.DataFrame({"stack": data["depth_stack"].values.astype(str), "depth": data["depth_index"].values})
    if "hidden_norm" in data and has_position(data, 0):
        table["hidden_norm_ratio"] = hidden_norm_ratio(data).values
    if "hidden_top" in data:
        with metrics.quiet():
            largest = np.nanmax(np.abs(data["hidden_top"].values), -1)
        table["largest"] = metrics.nanmean(np.where(np.isnan(data["hidden_median"].values), np.nan, largest), 0)
        table["median"] = metrics.nanmean(data["hidden_median"].values, 0)
    if "hidden_max" in data:
        ratios = metrics.token_peak_ratios(data["hidden_max"].values, depth_lengths(data))
        table["token_peak_upper"] = metrics.nanmean(ratios.upper, 0)
        table["token_peak_lower"] = metrics.nanmean(ratios.lower, 0)
    for name in AVERAGED:
        if name in data:
            table[name] = metrics.nanmean(data[name].values, 0)
    if "band_energy_mean" in data:
        table["dark_share"] = metrics.nanmean(data["band_energy_mean"].values[..., -1], 0)
    return table


def massive_activations(data: xr.Dataset, magnitude: float, ratio: float) -> pd.DataFrame:
    """See `Measurement.massive_activations`."""
    for name in TOP:
        need(data, name, "MassiveActivations")
    stacks = dict.fromkeys(data["depth_stack"].values.tolist())
    lives = [_lives(data, str(stack), magnitude, ratio) for stack in stacks]
    return pd.concat(lives, ignore_index=True)


def _lives(data: xr.Dataset, stack: str, magnitude: float, ratio: float) -> pd.DataFrame:
    chosen = data["depth_stack"].values == stack
    parts = [data[name].values[:, chosen] for name in TOP]
    entries = metrics.massive_entries(*parts, magnitude=magnitude, ratio=ratio)
    lives = metrics.massive_lives(entries, int(chosen.sum()))
    lives.insert(0, "stack", stack)
    top, *_, median = parts
    lives["complete"] = not metrics.truncated(top, median, magnitude=magnitude, ratio=ratio).any()
    return lives


def super_experts(data: xr.Dataset) -> pd.DataFrame:
    """See `Measurement.super_experts`."""
    peaks = need(data, "expert_peak", "ExpertPeaks")
    return metrics.super_experts(peaks.values, [str(name) for name in peaks["moe_layer"].values])
