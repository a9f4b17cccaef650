"""A survey as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import plotly.graph_objects as go

from sinkscope.survey.rows import Row


def rate_bars(rows: Sequence[Row]) -> go.Figure:
    """See `Survey.plot`: a group of bars per model, a bar per input; models that were not measured have no bar."""
    labels = list(dict.fromkeys(row.label for row in rows))
    inputs = list(dict.fromkeys(row.input for row in rows))
    figure = go.Figure()
    for kind in inputs:
        drawn = [row for row in rows if row.input == kind and row.sink_rate is not None]
        figure.add_bar(
            x=[row.sink_rate for row in drawn],
            y=[escape(row.label) for row in drawn],
            orientation="h",
            name=escape(kind),
            error_x=intervals(drawn),
            hovertemplate="%{y}: %{x:.2f} %<extra>%{fullData.name} input</extra>",
        )
    return figure.update_layout(
        height=110 + (12 + 18 * len(inputs)) * len(labels),
        barmode="group",
        bargap=0.3,
        xaxis={"title": {"text": "sink rate at position 0 (%)"}, "rangemode": "tozero"},
        yaxis={
            "type": "category",
            "categoryorder": "array",
            "categoryarray": [escape(label) for label in labels],
            "autorange": "reversed",
            "showgrid": False,
        },
    )


def intervals(rows: Sequence[Row]) -> dict[str, object]:
    """Error bars of the rows' bootstrap intervals."""
    bounds = [(row.low, row.sink_rate, row.high) for row in rows]
    return {
        "type": "data",
        "symmetric": False,
        "array": [None if high is None or rate is None else high - rate for _, rate, high in bounds],
        "arrayminus": [None if low is None or rate is None else rate - low for low, rate, _ in bounds],
        "thickness": 1.5,
        "width": 3,
    }
