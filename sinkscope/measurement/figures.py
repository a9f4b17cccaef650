"""Figures of where attention goes: pure functions from stored statistics to Plotly.

Positions count from 0. `attention_received` is alpha_k of the sink metric, between 0 and 1; sink rates are percent of
all (layer, head) pairs. Samples are averaged; NaN (padding, heads a layer does not have) is left out.
"""

from __future__ import annotations

from html import escape

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from sinkscope.measurement.rates import warn_if_short
from sinkscope.measurement.selection import column_of, layer_labels, need, record_of
from sinkscope.measurement.strongest import rates_by_position, strongest_position
from sinkscope.theme import BELOW, BLUE, INK, SINK, figure, intervals, template, threshold_scale, tint

SLIDER_POSITIONS = 32


def sink_figure(data: xr.Dataset, epsilon: float, position: int | None = None) -> go.Figure:
    """See `Measurement.plot`."""
    warn_if_short(data)
    measured = need(data, "attention_received", "AttentionReceived")["position"]
    record, first = record_of(data), int(measured[0]) if position is None else position
    titles = (f"Sink rate (ε = {epsilon:g})", f"Attention received, position {first}")
    result = make_subplots(cols=2, subplot_titles=titles, horizontal_spacing=0.12)
    panels = (sink_rate_by_position(rates_by_position(data, epsilon)), attention_received(data, first, epsilon))
    for column, panel in enumerate(panels, start=1):
        result.add_trace(panel.data[0], row=1, col=column)
        result.update_xaxes(panel.layout.xaxis.to_plotly_json(), row=1, col=column)
        result.update_yaxes(panel.layout.yaxis.to_plotly_json(), row=1, col=column)
    title = escape(f"{record['model']}: {record['samples']} samples, up to {record['tokens']} tokens")
    return result.update_layout(
        template=template(), title=title, margin={"t": 88}, coloraxis=panels[1].layout.coloraxis, bargap=0.35
    )


def attention_received(data: xr.Dataset, position: int = 0, epsilon: float = 0.3) -> go.Figure:
    """Heat map of the attention a position receives, per layer and head; orange cells exceed the sink threshold.

    A slider leads to other positions: this one, the first 32 and the strongest one, so that long contexts stay small.
    """
    received = need(data, "attention_received").mean("sample")
    column_of(data, position)
    maps = {
        int(k): received.sel(position=k).transpose("layer", "head").values
        for k in _slider_positions(data, position, epsilon)
    }
    layers, heads = layer_labels(data), [str(head) for head in received["head"].values]
    result = figure(height=90 + max(24 * len(layers), 160), legend=False)
    result.add_heatmap(
        z=maps[position],
        x=heads,
        y=layers,
        coloraxis="coloraxis",
        xgap=2,
        ygap=2,
        texttemplate="%{z:.2f}" if len(heads) <= 12 else None,
        hovertemplate="layer %{y}, head %{x}: %{z:.4f}<extra></extra>",
    )
    steps = [{"label": str(k), "method": "restyle", "args": [{"z": [_rows(grid)]}]} for k, grid in maps.items()]
    slider = {"active": list(maps).index(position), "currentvalue": {"prefix": "position "}, "steps": steps}
    bar = {"tickvals": [0, epsilon, 1], "ticktext": ["0", f"ε = {epsilon:g}", "1"]}
    return result.update_layout(
        xaxis={"title": {"text": "head"}, "type": "category", "showgrid": False},
        yaxis={"title": {"text": "layer"}, "type": "category", "showgrid": False},
        coloraxis={"cmin": 0, "cmax": 1, "colorscale": threshold_scale(epsilon), "colorbar": bar},
        sliders=[slider],
    )


def sink_rate_by_position(rates: pd.DataFrame) -> go.Figure:
    """Sink rate of every position, from the frame of `rates_by_position`.

    The strongest is orange; the bars of positions that too few queries see for a comparison are pale.
    """
    colors = [
        SINK if is_strongest else BLUE if is_counted else tint(BLUE, 0.3)
        for is_strongest, is_counted in zip(rates["strongest"], rates["counted"], strict=True)
    ]
    result = figure(height=280, legend=False)
    result.add_bar(
        x=rates["position"].tolist(),
        y=rates["sink_rate"].tolist(),
        error_y=_interval(rates),
        marker={"color": colors},
        hovertemplate="position %{x}: %{y:.2f} %<extra></extra>",
    )
    return result.update_layout(
        xaxis={"title": {"text": "position in the text (tokens)"}},
        yaxis={"title": {"text": "sink rate (%)"}, "rangemode": "tozero"},
        bargap=0.35,
    )


def sink_rate_by_input(rates: pd.DataFrame) -> go.Figure:
    """Sink rate at position 0 on several inputs of one model: the frame holds `input, sink_rate, low, high`."""
    result = figure(height=70 + 44 * len(rates), legend=False)
    result.add_bar(
        x=rates["sink_rate"].tolist(),
        y=[escape(name) for name in rates["input"]],
        orientation="h",
        error_x=_interval(rates),
        marker={"color": tint(SINK, 0.35), "line": {"color": SINK, "width": 1.5}},
        hovertemplate="%{y}: %{x:.2f} %<extra></extra>",
    )
    return result.update_layout(
        xaxis={"title": {"text": "sink rate at position 0 (%)"}, "rangemode": "tozero"},
        yaxis={"autorange": "reversed", "showgrid": False},
        bargap=0.45,
    )


def _interval(rates: pd.DataFrame) -> dict[str, object]:
    return intervals(*(rates[column].tolist() for column in ("sink_rate", "low", "high")))


def _slider_positions(data: xr.Dataset, position: int, epsilon: float) -> list[int]:
    found = strongest_position(data, epsilon)
    best = [] if found is None else [found.position]
    return sorted({*data["position"].values[:SLIDER_POSITIONS].tolist(), *best, position})


def _rows(grid: np.ndarray) -> list[list[float | None]]:
    """Lists with four decimals; NaN, which JSON does not have, as None."""
    return [[None if np.isnan(value) else round(float(value), 4) for value in row] for row in grid]


def head_differences(heads: pd.DataFrame, position: int, names: tuple[str, str]) -> go.Figure:
    """Heat map of `Comparison.heads`: second − first in percentage points; a dot marks an interval that excludes 0."""
    several = heads["stack"].nunique() > 1
    labels = [f"{row.stack} {row.layer}" if several else str(row.layer) for row in heads.itertuples()]
    frame = heads.assign(label=labels, points=100 * heads["difference"])
    layers = list(dict.fromkeys(labels))
    grid = frame.pivot(index="label", columns="head", values="points").reindex(layers)
    reach = max(1.0, float(np.nanmax(np.abs(grid.values))))  # a map of nothing is not drawn as if it were something
    result = figure(height=90 + max(24 * len(layers), 160), legend=False)
    result.add_heatmap(
        z=_rows(grid.values),
        x=[str(head) for head in grid.columns],
        y=layers,
        zmin=-reach,
        zmax=reach,
        colorscale=[[0.0, BLUE], [0.5, BELOW[0]], [1.0, SINK]],
        colorbar={"title": {"text": "points", "side": "right"}, "outlinewidth": 0, "thickness": 12},
        xgap=2,
        ygap=2,
        hovertemplate="layer %{y}, head %{x}: %{z:.2f} points<extra></extra>",
    )
    sure = frame[frame["differs"]]
    result.add_scatter(
        x=sure["head"].astype(str),
        y=sure["label"],
        mode="markers",
        marker={"color": INK, "size": 5},
        hoverinfo="skip",
        showlegend=False,
    )
    result.update_xaxes(
        title=f"head; attention received by position {position}, {escape(names[1])} − {escape(names[0])}"
    )
    return result.update_yaxes(title="layer", autorange="reversed", type="category").update_xaxes(type="category")
