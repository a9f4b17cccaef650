"""Figures of a choice: what each arm does to texts held out, and what each head gained where it was chosen."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go

from sinkscope.theme import INK, figure, intervals, series_style

ARMS = "Texts held out"
HEADS = "Heads, where they were chosen"


def of_arms(table: pd.DataFrame) -> go.Figure:
    """Nats by which each arm differs from nothing: a point with its interval on texts held out, a ring where it was
    chosen."""
    arms = table.iloc[1:]
    result = figure(height=160 + 40 * len(arms))
    names = arms["arm"].tolist()
    held = arms["held_out"].tolist()
    bars = intervals(held, arms["low"].tolist(), arms["high"].tolist())
    result.add_scatter(
        x=held, y=names, name="held out, 95 % interval", mode="markers", error_x=bars, **_marker(0, "circle")
    )
    result.add_scatter(
        x=arms["chosen_on"].tolist(), y=names, name="chosen on", mode="markers", **_marker(1, "circle-open")
    )
    result.add_vline(x=0, line={"color": INK, "width": 1, "dash": "dash"})
    return result.update_layout(
        xaxis={"title": {"text": "nats a token against nothing (below 0: better)"}}, yaxis={"autorange": "reversed"}
    )


def of_heads(gains: Mapping[tuple[int, int], float]) -> go.Figure:
    """Gain of each head by itself, in the objective's own units, (layer, head)."""
    layers = sorted({layer for layer, _ in gains})
    heads = sorted({head for _, head in gains})
    values = [[gains.get((layer, head)) for head in heads] for layer in layers]
    largest = max((abs(value) for value in gains.values()), default=0.0) or 1.0
    result = figure(height=140 + 28 * len(layers), legend=False)
    scale = {"zmin": -largest, "zmax": largest, "colorscale": "RdBu", "colorbar": {"title": {"text": "gain"}}}
    result.add_heatmap(z=values, x=heads, y=layers, **scale)
    return result.update_layout(
        xaxis={"title": {"text": "head"}, "dtick": 1}, yaxis={"title": {"text": "layer"}, "dtick": 1}
    )


def _marker(index: int, symbol: str) -> dict[str, object]:
    line = series_style(index)["line"]
    return {"marker": {"color": line["color"], "symbol": symbol, "size": 10, "line": {"width": 2}}}
