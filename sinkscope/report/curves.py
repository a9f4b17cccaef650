"""Training as a figure and a table: loss and sink over the steps of one or several runs."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import pandas as pd
import plotly.graph_objects as go

from sinkscope.errors import InputError
from sinkscope.report.runs import StoredRun
from sinkscope.theme import SERIES, figure, series_style, tint

SINK = "sink/position_0"
RATIO = "sink/hidden_norm_ratio"
LOSS = "loss"
VALIDATION_LOSS = "validation_loss"
_COLUMNS = {SINK: "sink rate (%)", VALIDATION_LOSS: "validation loss", RATIO: "hidden norm ratio"}


def training_curves(runs: Sequence[StoredRun]) -> go.Figure:
    """Sink rate at position 0 (percent) above, loss (nats per token) below, on one axis of steps.

    Points are evaluations on validation text; the pale line in the lower panel is the loss on training batches.
    Clicking a run in the legend hides it in both panels.
    """
    if not runs:
        raise InputError("nothing to draw: no runs")
    result = figure(height=520)
    for index, run in enumerate(runs):
        name = escape(run.label)
        style = {"mode": "lines+markers", "cliponaxis": False, **series_style(index)}
        result.add_scatter(
            **_points(run, SINK),
            **style,
            name=name,
            legendgroup=name,
            hovertemplate="step %{x}: %{y:.2f} %<extra>%{fullData.name}, sink rate</extra>",
        )
        result.add_scatter(
            **_points(run, LOSS),
            mode="lines",
            line={"color": tint(SERIES[index % len(SERIES)], 0.35), "width": 1},
            name=name,
            legendgroup=name,
            showlegend=False,
            yaxis="y2",
            hovertemplate="step %{x}: %{y:.3f}<extra>%{fullData.name}, training loss</extra>",
        )
        result.add_scatter(
            **_points(run, VALIDATION_LOSS),
            **style,
            name=name,
            legendgroup=name,
            showlegend=False,
            yaxis="y2",
            hovertemplate="step %{x}: %{y:.3f}<extra>%{fullData.name}, validation loss</extra>",
        )
    return result.update_layout(
        xaxis={"title": {"text": "training step"}, "anchor": "y2"},
        yaxis={"title": {"text": "sink rate at position 0 (%)"}, "domain": [0.56, 1], "rangemode": "tozero"},
        yaxis2={"title": {"text": "loss (nats per token)"}, "domain": [0, 0.46]},
        hovermode="x unified",
    )


def training_table(runs: Sequence[StoredRun]) -> pd.DataFrame:
    """One row per evaluated step; sink rate, validation loss and hidden-norm ratio of every run."""
    columns = {}
    for run in runs:
        for metric, title in _COLUMNS.items():
            steps, values = run.curve(metric)
            columns[f"{run.label}: {title}"] = pd.Series(values, index=steps, dtype=float)
    frame = pd.DataFrame(columns).sort_index().round(3)
    return frame.rename_axis("step").reset_index()


def _points(run: StoredRun, metric: str) -> dict[str, list[int] | list[float]]:
    steps, values = run.curve(metric)
    return {"x": steps, "y": values}
