"""Figures of norms: the residual stream over depth, and the values a sink carries.

Norms are L2, in the model's own units, averaged over samples; NaN is left out. "The others" are all positions but the
one looked at, pooled by their arithmetic mean.
"""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from sinkscope.measurement.metrics import quiet
from sinkscope.measurement.selection import column_of, depth_labels, layer_labels, need
from sinkscope.theme import BLUE, INK, SINK, figure, tint

OTHERS = "mean of the other positions"


Limits = tuple[float, float]


def norm_limits(*measured: xr.Dataset) -> Limits:
    """The smallest and largest mean hidden norm of several measurements, for axes that can be compared.

    From 1 to 10 where there is no number at all.
    """
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
    """1, 2, 5 × powers of ten between two decimal logarithms; the powers alone where the range is wide."""
    powers = range(int(np.floor(low)), int(np.ceil(high)) + 1)
    steps = (1, 2, 5) if high - low < 2.5 else (1,)
    ticks = [step * 10.0**power for power in powers for step in steps]
    return [tick for tick in ticks if low <= np.log10(tick) <= high]
