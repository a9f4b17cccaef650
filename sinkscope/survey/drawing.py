"""A survey as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import plotly.graph_objects as go

from sinkscope.survey.rows import Row
from sinkscope.theme import figure, intervals


def rate_bars(rows: Sequence[Row]) -> go.Figure:
    """See `Survey.plot`: a group of bars per model, a bar per input; models that were not measured have no bar."""
    labels = list(dict.fromkeys(row.label for row in rows))
    inputs = list(dict.fromkeys(row.input for row in rows))
    result = figure(height=110 + (12 + 18 * len(inputs)) * len(labels))
    for kind in inputs:
        drawn = [row for row in rows if row.input == kind and row.sink_rate is not None]
        result.add_bar(
            x=[row.sink_rate for row in drawn],
            y=[escape(row.label) for row in drawn],
            orientation="h",
            name=escape(kind),
            error_x=error_bars(drawn),
            hovertemplate="%{y}: %{x:.2f} %<extra>%{fullData.name} input</extra>",
        )
    return result.update_layout(
        showlegend=True,
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


def error_bars(rows: Sequence[Row]) -> dict[str, object]:
    """The rows' intervals."""
    return intervals([row.sink_rate for row in rows], [row.low for row in rows], [row.high for row in rows])
