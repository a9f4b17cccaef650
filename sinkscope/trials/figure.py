"""The one figure of a trial: what each arm costs, with its interval."""

from __future__ import annotations

from html import escape

import pandas as pd
import plotly.graph_objects as go

from sinkscope.theme import INK, SINK, SLATE, figure, intervals

STYLES = {
    "baseline": ("baseline", INK, "diamond"),
    "arm": ("arm", SINK, "circle"),
    "control": ("random controls, each draw", SLATE, "circle-open"),
}


TITLES = {
    "kl": "KL to the unchanged model, nats a token",
    "lost": "loss against the unchanged model, nats a token (below 0: better)",
    "agreement": "share of tokens that agree",
}


def cost_figure(table: pd.DataFrame, baseline: float | None, by: str = "kl") -> go.Figure:
    """One row per arm of a full table, with its interval; an arm's controls are small rings on its row."""
    column = by if by in table else "agreement"
    table = table[table["role"] != "reference"]
    rows = [name for name, role in zip(table["arm"], table["role"], strict=True) if role != "control"]
    result = figure(height=170 + 30 * len(rows))
    for role, (title, color, symbol) in STYLES.items():
        own = table[table["role"] == role]
        if own.empty:
            continue
        values = own[column].tolist()
        names = own["of" if role == "control" else "arm"]
        result.add_scatter(
            x=values,
            y=[escape(name or arm) for name, arm in zip(names, own["arm"], strict=True)],
            error_x=None
            if role == "control"
            else intervals(values, own[f"{column}_low"].tolist(), own[f"{column}_high"].tolist()),
            mode="markers",
            name=title,
            text=[escape(name) for name in own["arm"]],
            marker={"color": color, "symbol": symbol, "size": 7 if role == "control" else 10, "line": {"width": 2}},
            hovertemplate="%{text}: %{x:.4g}<extra></extra>",
        )
    if column == "kl" and baseline is not None:
        result.add_vline(x=baseline, line={"color": INK, "width": 1, "dash": "dash"})
    return result.update_layout(
        xaxis={"title": {"text": TITLES[column]}, "rangemode": "tozero"},
        yaxis={"categoryorder": "array", "categoryarray": [escape(name) for name in rows[::-1]]},
    )
