"""The one figure of a trial: what each arm costs, with its interval."""

from __future__ import annotations

from html import escape

import pandas as pd
import plotly.graph_objects as go

from sinkscope.theme import INK, SINK, SLATE, figure, intervals, series_style

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
        rows = table[table["role"] == role]
        if rows.empty:
            continue
        values = rows[column].tolist()
        names = rows["of" if role == "control" else "arm"]
        result.add_scatter(
            x=values,
            y=[escape(name or arm) for name, arm in zip(names, rows["arm"], strict=True)],
            error_x=None
            if role == "control"
            else intervals(values, rows[f"{column}_low"].tolist(), rows[f"{column}_high"].tolist()),
            mode="markers",
            name=title,
            text=[escape(name) for name in rows["arm"]],
            marker={"color": color, "symbol": symbol, "size": 7 if role == "control" else 10, "line": {"width": 2}},
            hovertemplate="%{text}: %{x:.4g}<extra></extra>",
        )
    if column == "kl" and baseline is not None:
        result.add_vline(x=baseline, line={"color": INK, "width": 1, "dash": "dash"})
    return result.update_layout(
        xaxis={"title": {"text": TITLES[column]}, "rangemode": "tozero"},
        yaxis={"categoryorder": "array", "categoryarray": [escape(name) for name in rows[::-1]]},
    )


def against_bytes(table: pd.DataFrame, series: pd.Series) -> go.Figure | None:
    """A line per series over the bytes that are held, controls thin and dotted; None where no series has two budgets.

    `table` is a full one, `series` gives the series of each arm.
    """
    if "bytes_share" not in table or "kl" not in table:
        return None
    of = dict(zip(table["arm"], table["of"], strict=True))
    lines = table[table["role"] != "reference"].copy()
    lines["line"] = [
        f"random for {series[of[arm]]}" if role == "control" else series[arm] or arm
        for arm, role in zip(lines["arm"], lines["role"], strict=True)
    ]
    groups = list(lines.groupby("line", sort=False))
    if max((group["bytes_share"].nunique() for _, group in groups), default=0) < 2:
        return None
    result = figure(height=400 + 12 * len(groups))
    for index, (name, group) in enumerate(groups):
        group = group.sort_values("bytes_share")
        values, style = group["kl"].tolist(), series_style(index)
        if set(group["role"]) == {"control"}:
            style = {**style, "line": {**style["line"], "width": 1, "dash": "dot"}}
        result.add_scatter(
            x=(100 * group["bytes_share"]).tolist(),
            y=values,
            text=[escape(arm) for arm in group["arm"]],
            name=escape(str(name)),
            mode="lines+markers",
            error_y=intervals(values, group["kl_low"].tolist(), group["kl_high"].tolist()),
            **style,
            hovertemplate="%{text}: %{y:.4g}<br>%{x:.1f} % of the bytes<extra></extra>",
        )
    return result.update_layout(
        xaxis={"title": {"text": "held after the context, % of the full cache's bytes"}, "rangemode": "tozero"},
        yaxis={"title": {"text": "KL to the unchanged model, nats a token"}, "rangemode": "tozero"},
    )
