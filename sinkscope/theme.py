"""Colors and the Plotly template shared by every figure.

A figure is written in the light palette. In dark mode the page's script replaces each color by its partner (`DARK`), so
figures have no second copy of their data. Series colors follow Okabe and Ito's palette, darkened until each has a
contrast of 3:1 on white; series also differ in dash or symbol.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

import plotly.graph_objects as go

__all__ = [
    "ABOVE",
    "BELOW",
    "BLUE",
    "DARK",
    "DASHES",
    "FONT",
    "GREEN",
    "GRID",
    "INK",
    "MONO",
    "MUTED",
    "OCHRE",
    "ORANGE",
    "PAPER",
    "PURPLE",
    "SEQUENTIAL",
    "SERIES",
    "SINK",
    "SLATE",
    "SYMBOLS",
    "figure",
    "intervals",
    "layout",
    "series_style",
    "template",
    "threshold_scale",
    "tint",
]

INK: Final = "#1b1f24"
MUTED: Final = "#59636e"
GRID: Final = "#e3e6ea"
PAPER: Final = "#fffffe"

BLUE: Final = "#0068b2"
ORANGE: Final = "#c9500b"
GREEN: Final = "#007f60"
PURPLE: Final = "#a5478d"
OCHRE: Final = "#8c6900"
SLATE: Final = "#53606d"

SINK: Final = ORANGE
"""The color of what is, or may be, a sink; series of runs never use it."""

SERIES: Final = (BLUE, OCHRE, PURPLE, GREEN, SLATE)
DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash")
SYMBOLS: Final = ("circle", "diamond", "square", "triangle-up", "x")
SEQUENTIAL: Final = ("#f3f6f9", "#c3d9ec", "#76b0dc", "#2c7ab8", "#0a3d6b")
BELOW: Final = ("#f2f5f8", "#a9c9e4")
ABOVE: Final = ("#f4b183", "#7a2c00")

DARK: Final = {
    INK: "#e8ebef",
    MUTED: "#9da7b3",
    GRID: "#2e353d",
    PAPER: "#181c21",
    BLUE: "#5cb0f2",
    ORANGE: "#f28c4f",
    GREEN: "#3fc49c",
    PURPLE: "#df8fca",
    OCHRE: "#d8b94e",
    SLATE: "#a3afbb",
    **dict(zip(SEQUENTIAL, ("#20262d", "#1f4361", "#2b74aa", "#6db8f3", "#e6f4ff"), strict=True)),
    **dict(zip(BELOW, ("#21272e", "#2b5578"), strict=True)),
    **dict(zip(ABOVE, ("#a3521f", "#ffd9bd"), strict=True)),
}

FONT: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
MONO: Final = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"


@functools.cache
def template() -> go.layout.Template:
    """The template of every figure: quiet axes, the legend above, one color scale for heat maps."""
    axis = {
        "gridcolor": GRID,
        "linecolor": GRID,
        "zeroline": False,
        "ticks": "",
        "ticklabelstandoff": 3,
        "title": {"font": {"color": MUTED, "size": 12}, "standoff": 8},
        "tickfont": {"color": MUTED, "size": 11},
        "automargin": True,
    }
    bar = {"outlinewidth": 0, "thickness": 12, "tickfont": {"color": MUTED, "size": 11}}
    return go.layout.Template(
        layout={
            "font": {"family": FONT, "color": INK, "size": 13},
            "paper_bgcolor": PAPER,
            "plot_bgcolor": PAPER,
            "colorway": list(SERIES),
            "xaxis": axis,
            "yaxis": axis,
            "coloraxis": {
                "colorscale": [[i / (len(SEQUENTIAL) - 1), color] for i, color in enumerate(SEQUENTIAL)],
                "colorbar": bar,
            },
            "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"},
            "hoverlabel": {"font": {"family": MONO, "size": 12}},
            "margin": {"l": 56, "r": 16, "t": 48, "b": 48},
            "annotationdefaults": {"font": {"color": MUTED, "size": 12}, "showarrow": False},
        }
    )


def threshold_scale(threshold: float) -> list[list[float | str]]:
    """A color scale over 0 … 1 that is blue up to a threshold and orange above it."""
    return [[0.0, BELOW[0]], [threshold, BELOW[1]], [threshold, ABOVE[0]], [1.0, ABOVE[1]]]


def tint(color: str, alpha: float) -> str:
    """A palette color as `#rrggbbaa`, which the page's change of scheme still recognizes and replaces."""
    return f"{color}{round(alpha * 255):02x}"


def series_style(index: int) -> dict[str, dict[str, object]]:
    """Line and marker of the series with this number, distinct beyond the number of colors."""
    color, turn = SERIES[index % len(SERIES)], index // len(SERIES)
    return {
        "line": {"color": color, "width": 2, "dash": DASHES[(index + turn) % len(DASHES)]},
        "marker": {"color": color, "size": 7, "symbol": SYMBOLS[(index + turn) % len(SYMBOLS)]},
    }


def intervals(
    values: Sequence[float | None], low: Sequence[float | None], high: Sequence[float | None]
) -> dict[str, object]:
    """Error bars from the ends of intervals; none where a value or an end is unknown."""

    def reach(ends: Sequence[float | None], sign: int) -> list[float | None]:
        pairs = zip(ends, values, strict=True)
        return [None if end is None or value is None else sign * (end - value) for end, value in pairs]

    bars = {"array": reach(high, 1), "arrayminus": reach(low, -1)}
    return {"type": "data", "symmetric": False, **bars, "color": INK, "thickness": 1.5, "width": 3}


def layout(height: int, legend: bool = True) -> dict[str, object]:
    """The layout of an empty figure, without the template; `uirevision` keeps a reader's zoom in a new scheme."""
    return {"height": height, "margin": {"t": 48 if legend else 12}, "uirevision": "reader"}


def figure(height: int, legend: bool = True) -> go.Figure:
    """An empty figure in the house style."""
    return go.Figure(layout={"template": template(), **layout(height, legend)})
