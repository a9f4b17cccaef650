"""Figures of where attention goes: pure functions from stored statistics to Plotly.

Positions count from 0. `attention_received` is alpha_k of the sink metric, between 0 and 1; sink rates are percent of
all (layer, head) pairs. Samples are averaged; NaN (padding, heads a layer does not have) is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from sinkscope.errors import InputError, unknown
from sinkscope.measurement.metrics import quiet
from sinkscope.measurement.rates import warn_if_short
from sinkscope.measurement.selection import column_of, depth_labels, layer_labels, need, record_of
from sinkscope.measurement.strongest import rates_by_position, strongest_position
from sinkscope.theme import BELOW, BLUE, INK, SINK, figure, intervals, template, threshold_scale, tint

SLIDER_POSITIONS = 32


def sink_figure(data: xr.Dataset, epsilon: float, position: int) -> go.Figure:
    """See `Measurement.plot`."""
    warn_if_short(data)
    need(data, "attention_received", "AttentionReceived")
    record = record_of(data)
    titles = (f"Sink rate (ε = {epsilon:g})", f"Attention received, position {position}")
    result = make_subplots(cols=2, subplot_titles=titles, horizontal_spacing=0.12)
    panels = (sink_rate_by_position(rates_by_position(data, epsilon)), attention_received(data, position, epsilon))
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

    A slider selects other positions: the first 32 and the strongest, so that figures of long contexts stay small.
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

    The strongest is orange; bars are pale where too few queries see the position for a comparison.
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
    strongest = strongest_position(data, epsilon)
    best = [] if strongest is None else [strongest.position]
    return sorted({*data["position"].values[:SLIDER_POSITIONS].tolist(), *best, position})


def _rows(grid: np.ndarray) -> list[list[float | None]]:
    """Lists with four decimals; NaN becomes None, because JSON has no NaN."""
    return [[None if np.isnan(value) else round(float(value), 4) for value in row] for row in grid]


def head_differences(heads: pd.DataFrame, position: int, names: tuple[str, str]) -> go.Figure:
    """Heat map of `Comparison.heads`: second − first in percentage points; a dot marks an interval that excludes 0."""
    several = heads["stack"].nunique() > 1
    labels = [f"{row.stack} {row.layer}" if several else str(row.layer) for row in heads.itertuples()]
    frame = heads.assign(label=labels, points=100 * heads["difference"])
    layers = list(dict.fromkeys(labels))
    grid = frame.pivot(index="label", columns="head", values="points").reindex(layers)
    reach = max(1.0, float(np.nanmax(np.abs(grid.values))))  # an empty map must not look like data
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


# Figures of norms: the residual stream over depth, and the values a sink carries.
#
# Norms are L2, in the model's own units, averaged over samples; NaN is left out. "The others" are all other positions,
# pooled by their arithmetic mean.

OTHERS = "mean of the other positions"


Limits = tuple[float, float]


def norm_limits(*measured: xr.Dataset) -> Limits:
    """The smallest and largest mean hidden norm of several measurements, for comparable axes; (1, 10) without data."""
    norms = np.concatenate([_norms(data).values.ravel() for data in measured])
    known = norms[~np.isnan(norms)]
    return (float(known.min()), float(known.max())) if known.size else (1.0, 10.0)


def hidden_norm_map(data: xr.Dataset, limits: Limits | None = None) -> go.Figure:
    """Heat map of the residual stream's norm, depth × position, on a logarithmic color scale from `limits`."""
    norms = _norms(data)
    low, high = np.log10(limits or norm_limits(data)).tolist()
    grid = np.log10(norms.values)
    ticks = _ticks(low, high)
    bar = {
        "title": {"text": "norm"},
        "tickvals": [float(np.log10(tick)) for tick in ticks],
        "ticktext": [f"{tick:g}" for tick in ticks],
    }
    result = figure(height=90 + max(20 * norms.sizes["depth"], 170), legend=False)
    result.add_heatmap(
        z=grid,
        x=norms["position"].values,
        y=depth_labels(data),
        customdata=norms.values,
        coloraxis="coloraxis",
        ygap=2,
        hovertemplate="depth %{y}, position %{x}: norm %{customdata:.3g}<extra></extra>",
    )
    return result.update_layout(
        xaxis={"title": {"text": "position in the text (tokens)"}, "showgrid": False},
        yaxis={"title": {"text": "depth (blocks)"}, "showgrid": False, "type": "category"},
        coloraxis={"cmin": low, "cmax": high, "colorbar": bar},
    )


def hidden_norms(data: xr.Dataset, position: int = 0, limits: Limits | None = None) -> go.Figure:
    """The norm at one position against the others, over depth, on a log scale.

    Depth 0 is the embedding, depth l the output of block l. The band spans the 10th to 90th percentile of the others.
    """
    column_of(data, position)
    norms = _norms(data)
    depth = depth_labels(data)
    others = norms.where(norms["position"] != position)
    with quiet():
        band = others.quantile([0.1, 0.9], dim="position").values
    result = figure(height=340)
    result.add_scatter(
        x=depth + depth[::-1],
        y=np.concatenate([band[1], band[0][::-1]]),
        fill="toself",
        fillcolor=tint(BLUE, 0.15),
        line={"width": 0},
        mode="lines",
        showlegend=False,
        hoverinfo="skip",
    )
    for name, values, color, symbol in (
        (f"position {position}", norms.sel(position=position).values, SINK, "circle"),
        (OTHERS, others.mean("position").values, BLUE, "diamond"),
    ):
        result.add_scatter(
            x=depth,
            y=values,
            name=name,
            mode="lines+markers",
            line={"color": color, "width": 2.5},
            marker={"symbol": symbol, "size": 8, "color": color},
            hovertemplate="depth %{x}: %{y:.3g}<extra>%{fullData.name}</extra>",
        )
    low, high = np.log10(limits or norm_limits(data)).tolist()
    return result.update_layout(
        xaxis={"title": {"text": "depth (blocks)"}, "type": "category"},
        yaxis={
            "title": {"text": "hidden norm (L2, log scale)"},
            "type": "log",
            "range": [low - 0.15, high + 0.15],
            "tickvals": _ticks(low - 0.15, high + 0.15),
        },
    )


def value_norms(data: xr.Dataset, position: int = 0) -> go.Figure:
    """Value norms per layer, one position against the others: bars are means over heads, marks single heads."""
    column_of(data, position)
    norms = need(data, "value_norm").mean("sample").transpose("layer", "head", "position")
    layers = layer_labels(data)
    result = figure(height=360)
    for name, values, color, symbol in (
        (f"position {position}", norms.sel(position=position), SINK, "circle"),
        (OTHERS, norms.where(norms["position"] != position).mean("position"), BLUE, "diamond"),
    ):
        result.add_bar(
            x=layers,
            y=values.mean("head").values,
            name=name,
            legendgroup=name,
            offsetgroup=name,
            marker={"color": tint(color, 0.3), "line": {"color": color, "width": 1.5}},
            hovertemplate="layer %{x}: %{y:.3g}<extra>%{fullData.name}</extra>",
        )
        result.add_scatter(
            x=np.repeat(layers, values.sizes["head"]),
            y=values.values.ravel(),
            name=f"{name}, single heads",
            legendgroup=name,
            offsetgroup=name,
            showlegend=False,
            mode="markers",
            marker={"color": color, "size": 6, "symbol": symbol, "line": {"color": INK, "width": 0.5}},
            hovertemplate="layer %{x}: %{y:.3g}<extra>%{fullData.name}</extra>",
        )
    return result.update_layout(
        xaxis={"title": {"text": "layer"}, "type": "category"},
        yaxis={"title": {"text": "value norm (L2)"}, "rangemode": "tozero"},
        barmode="group",
        scattermode="group",
    )


def _norms(data: xr.Dataset) -> xr.DataArray:
    norms = need(data, "hidden_norm").mean("sample").transpose("depth", "position")
    return norms.where(norms > 0)


def _ticks(low: float, high: float) -> list[float]:
    """1, 2, 5 × powers of ten between two decimal logarithms; only the powers if the range is wide."""
    powers = range(int(np.floor(low)), int(np.ceil(high)) + 1)
    steps = (1, 2, 5) if high - low < 2.5 else (1,)
    ticks = [step * 10.0**power for power in powers for step in steps]
    return [tick for tick in ticks if low <= np.log10(tick) <= high]


Plot = Literal["sink", "positions", "heads", "hidden", "depths", "values"]

PLOTS: Mapping[str, Callable[[xr.Dataset, float, int], go.Figure]] = {
    "sink": sink_figure,
    "positions": lambda data, epsilon, position: sink_rate_by_position(rates_by_position(data, epsilon)),
    "heads": lambda data, epsilon, position: attention_received(data, position, epsilon),
    "hidden": lambda data, epsilon, position: hidden_norms(data, position),
    "depths": lambda data, epsilon, position: hidden_norm_map(data),
    "values": lambda data, epsilon, position: value_norms(data, position),
}
OF_EVERY_POSITION = ("positions", "depths")


def plot(data: xr.Dataset, epsilon: float, kind: Plot | str, position: int | None) -> go.Figure:
    """See `Measurement.plot`."""
    if kind not in PLOTS:
        raise unknown("plot", str(kind), [*PLOTS, "map"])
    if position is not None and kind in OF_EVERY_POSITION:
        raise InputError(f"plot '{kind}' shows every position: position={position} goes with the others")
    if position is None:
        position = int(data["position"].values[0]) if "position" in data.coords else 0
    return PLOTS[kind](data, epsilon, position)
