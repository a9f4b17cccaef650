"""Figures of the selected head without their numbers: the page's script fills them in whenever the selection moves."""

from __future__ import annotations

from typing import Final

import plotly.graph_objects as go

from sinkscope.report.theme import BLUE, INK, PAPER, SINK, SLATE, figure, tint

PROFILE: Final = "Attention received, by position"
ANGLES: Final = "Angles between queries and keys"
KEYS: Final = "The keys, in their two principal components"
MAP: Final = "Attention map"


def profile(epsilon: float) -> go.Figure:
    """Traces: the head, uniform attention."""
    result = figure(height=260)
    result.add_scatter(
        x=[],
        y=[],
        name="this head",
        mode="lines+markers",
        line={"color": BLUE, "width": 2},
        marker={"size": 4},
        hovertemplate="position %{x}: %{y:.3g}<extra></extra>",
    )
    result.add_scatter(
        x=[], y=[], name="uniform attention", mode="lines", line={"color": SLATE, "dash": "dot"}, hoverinfo="skip"
    )
    result.add_hline(y=epsilon, line={"color": SINK, "width": 1, "dash": "dash"})
    result.add_annotation(
        x=1, xref="paper", y=epsilon, text=f"ε = {epsilon:g}", xanchor="right", yanchor="bottom", bgcolor=PAPER
    )
    return result.update_layout(
        xaxis={"title": {"text": "position in the text (tokens)"}},
        yaxis={"title": {"text": "share of attention"}, "rangemode": "tozero"},
    )


def angles(position: int) -> go.Figure:
    """Traces: the position, the others."""
    result = figure(height=240)
    for name, colour, pattern in ((f"position {position}", SINK, ""), ("other positions", BLUE, "/")):
        result.add_bar(
            x=[],
            y=[],
            name=name,
            marker={"color": tint(colour, 0.55), "line": {"color": colour, "width": 1}, "pattern": {"shape": pattern}},
            hovertemplate="cosine %{x:.2f}: %{y:.3g} % of keys<extra>%{fullData.name}</extra>",
        )
    return result.update_layout(
        xaxis={"title": {"text": "cosine of query and key"}, "range": [-1, 1]},
        yaxis={"title": {"text": "keys (%)"}, "rangemode": "tozero"},
        barmode="overlay",
        bargap=0,
    )


def keys(position: int) -> go.Figure:
    """Traces: the other positions, the position."""
    return planar("key", position, 300)


def planar(what: str, position: int, height: int) -> go.Figure:
    """Points in a plane: other positions, and one that is marked."""
    result = figure(height=height)
    for name, colour, symbol, size in (
        ("other positions", BLUE, "circle", 5),
        (f"position {position}", SINK, "diamond", 10),
    ):
        result.add_scatter(
            x=[],
            y=[],
            customdata=[],
            name=name,
            mode="markers",
            marker={
                "color": tint(colour, 0.7),
                "symbol": symbol,
                "size": size,
                "line": {"width": 0.5, "color": INK if size > 5 else colour},
            },
            hovertemplate=f"{what} at position %{{customdata[0]}}, sample %{{customdata[1]}}<extra></extra>",
        )
    return result.update_layout(
        xaxis={"title": {"text": "first component"}, "zeroline": False},
        yaxis={"title": {"text": "second component"}, "zeroline": False},
    )


def attention_map() -> go.Figure:
    """One heat map, queries downwards."""
    result = figure(height=360, legend=False)
    result.add_heatmap(z=[], coloraxis="coloraxis", hovertemplate="%{text}<extra></extra>", hoverongaps=False)
    return result.update_layout(
        xaxis={"title": {"text": "key: position that is looked at"}, "showgrid": False, "constrain": "domain"},
        yaxis={
            "title": {"text": "query: position that looks"},
            "showgrid": False,
            "autorange": "reversed",
            "scaleanchor": "x",
            "constrain": "domain",
        },
        coloraxis={"cmin": 0, "cmax": 1, "colorbar": {"title": {"text": "weight"}}},
    )
