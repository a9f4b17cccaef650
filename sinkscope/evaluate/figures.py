"""Figures of a comparison: what is lost, and what is told and saved, against what is kept."""

from __future__ import annotations

from html import escape

import pandas as pd
import plotly.graph_objects as go

from sinkscope.theme import INK, figure, intervals, series_style

LOSS = "Nats lost"
RECALL = "Recall"
TIME = "Time a token"


def all_figures(table: pd.DataFrame) -> dict[str, go.Figure]:
    """Those figures whose numbers were measured, by title; `table` is a comparison's, with a column `series`."""
    found = {LOSS: against_kept(table, "loss", "nats a token worse than the full cache", "loss_low", "loss_high")}
    if "recall" in table:
        found[RECALL] = against_kept(table, "recall", "share of right answers", "recall_low", "recall_high")
    if "step_ratio" in table:
        found[TIME] = against_kept(table, "step_ratio", "time of a token, as a multiple of the full cache's")
    return found


def against_kept(
    table: pd.DataFrame, column: str, title: str, low: str | None = None, high: str | None = None
) -> go.Figure:
    """A line for each series over the share that is kept; the full cache is the horizontal line."""
    arms, full = table.iloc[1:], table.iloc[0]
    result = figure(height=400 + 12 * arms["series"].nunique())
    for index, (name, part) in enumerate(arms.groupby("series", sort=False)):
        part = part.sort_values("kept")
        values = part[column].tolist()
        bars = {} if low is None else {"error_y": intervals(values, part[low].tolist(), part[high].tolist())}
        style = series_style(index)
        if bool(part["control"].all()):
            style = {**style, "line": {**style["line"], "width": 1, "dash": "dot"}}
        result.add_scatter(
            x=(100 * part["kept"]).tolist(),
            y=values,
            text=[escape(arm) for arm in part["arm"]],
            name=escape(str(name)),
            mode="lines+markers",
            **bars,
            **style,
            hovertemplate="%{text}: %{y:.4g}<br>%{x:.1f} % kept<extra></extra>",
        )
    result.add_hline(y=float(full[column]), line={"color": INK, "width": 1, "dash": "dash"})
    result.add_annotation(text="full cache", xref="paper", x=1, y=float(full[column]), yshift=9, xanchor="right")
    return result.update_layout(
        xaxis={"title": {"text": "kept, % of the full cache's bytes"}, "rangemode": "tozero"},
        yaxis={"title": {"text": title}},
    )
