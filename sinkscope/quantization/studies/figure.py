"""The figure of a study: what each arm costs."""

from __future__ import annotations

from html import escape

import pandas as pd
import plotly.graph_objects as go

from sinkscope.theme import BLUE, INK, SINK, SLATE, figure, intervals

STYLES = {
    "nothing": ("everything quantized", INK, "diamond"),
    "spared": ("a choice of tokens", SINK, "x"),
    "first": ("the first tokens", BLUE, "square"),
    "control": ("random tokens", SLATE, "circle-open"),
}
TITLES = {
    "loss_cost": "nats a token worse than the full model",
    "kl": "KL(full ‖ arm), nats a token",
}


def cost_figure(table: pd.DataFrame, column: str) -> go.Figure:
    """A point per arm with its interval, of a study's table; the line is everything quantized."""
    arms = table[table["role"] != "full"]
    names = [escape(name) for name in arms["arm"]]
    result = figure(height=170 + 26 * len(names))
    for role, (title, color, symbol) in STYLES.items():
        own = arms[arms["role"] == role]
        if own.empty:
            continue
        values = own[column].tolist()
        result.add_scatter(
            x=values,
            y=[escape(name) for name in own["arm"]],
            error_x=intervals(values, own[f"{column}_low"].tolist(), own[f"{column}_high"].tolist()),
            mode="markers",
            name=title,
            marker={"color": color, "symbol": symbol, "size": 10, "line": {"width": 2}},
            hovertemplate="%{y}: %{x:.4g}<extra></extra>",
        )
    nothing = float(arms[column][arms["role"] == "nothing"].iloc[0])
    result.add_vline(x=nothing, line={"color": INK, "width": 1, "dash": "dash"})
    return result.update_layout(
        xaxis={"title": {"text": TITLES[column]}, "rangemode": "tozero"},
        yaxis={"categoryorder": "array", "categoryarray": names[::-1]},
    )
