"""The metrics per head as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.measurement.head_metric import HeadMetric
from sinkscope.measurement.head_metrics import HEAD_METRICS
from sinkscope.measurement.selection import column_of


def applicable(data: xr.Dataset, position: int) -> list[HeadMetric]:
    """The metrics that this measurement has numbers for, of this position, in the order of the table."""
    return [metric for metric in HEAD_METRICS if metric.applies(data, position)]


def head_values(data: xr.Dataset, epsilon: float, position: int) -> dict[HeadMetric, np.ndarray]:
    """Every applicable metric at a position. Raises `InputError` for a position that was not measured."""
    column_of(data, position)
    return {metric: metric.at(data, epsilon, [position])[0] for metric in applicable(data, position)}


def head_table(data: xr.Dataset, values: Mapping[HeadMetric, np.ndarray]) -> pd.DataFrame:
    """A row per head, a column per metric by its name; heads that a layer lacks are left out."""
    layers, heads = data.sizes["layer"], data.sizes.get("head", 0)
    table = pd.DataFrame(
        {
            "stack": np.repeat(data["stack"].values.astype(str), heads),
            "layer": np.repeat(data["layer_index"].values, heads),
            "head": np.tile(np.arange(heads), layers),
            **{metric.name: _column(grid) for metric, grid in values.items()},
        }
    )
    numbers = [metric.name for metric, grid in values.items() if grid.dtype.kind == "f"]
    return table.dropna(how="all", subset=numbers, ignore_index=True)


def _column(grid: np.ndarray) -> Any:
    """The values of all heads; yes and no with a third answer, for what is not known, as pandas has it."""
    return pd.array(grid.ravel().tolist(), "boolean") if grid.dtype.kind == "O" else grid.ravel()
