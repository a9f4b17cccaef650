"""The numbers behind the figures, as tables for people."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.report.curves import RATIO, SINK, VALIDATION_LOSS
from sinkscope.report.layers import depth_labels, layer_labels, need
from sinkscope.report.runs import StoredRun

_COLUMNS = {SINK: "sink rate (%)", VALIDATION_LOSS: "validation loss", RATIO: "hidden norm ratio"}


def training_table(runs: Sequence[StoredRun]) -> pd.DataFrame:
    """One row per evaluated step; sink rate, validation loss and hidden-norm ratio of every run."""
    columns = {}
    for run in runs:
        for metric, title in _COLUMNS.items():
            steps, values = run.curve(metric)
            columns[f"{run.label}: {title}"] = pd.Series(values, index=steps, dtype=float)
    frame = pd.DataFrame(columns).sort_index().round(3)
    return frame.rename_axis("step").reset_index()


def received_table(data: xr.Dataset, position: int = 0) -> pd.DataFrame:
    """Attention received by a position: a row per layer, a column per head."""
    grid = need(data, "attention_received").mean("sample").sel(position=position).transpose("layer", "head")
    frame = pd.DataFrame(grid.values.round(4), columns=[f"head {head}" for head in grid["head"].values])
    frame.insert(0, "layer", layer_labels(data))
    return frame


def hidden_norm_table(data: xr.Dataset, position: int = 0) -> pd.DataFrame:
    """Hidden norm of a position, of the others, and their ratio, per depth."""
    norms = need(data, "hidden_norm").mean("sample")
    return _against_others(norms, position, "depth", depth_labels(data))


def value_norm_table(data: xr.Dataset, position: int = 0) -> pd.DataFrame:
    """Value norm of a position, of the others, and their ratio, per layer."""
    norms = need(data, "value_norm").mean(["sample", "head"])
    return _against_others(norms, position, "layer", layer_labels(data))


def _against_others(norms: xr.DataArray, position: int, kind: str, labels: list[str]) -> pd.DataFrame:
    chosen = norms.sel(position=position).values
    others = norms.where(norms["position"] != position).mean("position").values
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = chosen / others
    return pd.DataFrame({kind: labels, f"position {position}": chosen, "others": others, "ratio": ratio})
