"""Figures of a measurement by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import plotly.graph_objects as go
import xarray as xr

from sinkscope.errors import InputError, unknown
from sinkscope.measurement.figures import attention_received, sink_figure, sink_rate_by_position
from sinkscope.measurement.norm_figures import hidden_norm_map, hidden_norms, value_norms
from sinkscope.measurement.strongest import rates_by_position

Plot = Literal["sink", "positions", "heads", "hidden", "depths", "values"]

PLOTS: Mapping[str, Callable[[xr.Dataset, float, int | None], go.Figure]] = {
    "sink": sink_figure,
    "positions": lambda data, epsilon, position: sink_rate_by_position(rates_by_position(data, epsilon)),
    "heads": lambda data, epsilon, position: attention_received(data, position or 0, epsilon),
    "hidden": lambda data, epsilon, position: hidden_norms(data, position or 0),
    "depths": lambda data, epsilon, position: hidden_norm_map(data),
    "values": lambda data, epsilon, position: value_norms(data, position or 0),
}
OF_EVERY_POSITION = ("positions", "depths")


def plot(data: xr.Dataset, epsilon: float, kind: Plot | str, position: int | None) -> go.Figure:
    """See `Measurement.plot`."""
    if kind not in PLOTS:
        raise unknown("plot", str(kind), PLOTS)
    if position is not None and kind in OF_EVERY_POSITION:
        raise InputError(f"plot '{kind}' shows every position: position={position} goes with the others")
    return PLOTS[kind](data, epsilon, position)
