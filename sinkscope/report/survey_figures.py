"""Figures of a survey: sink rates over depth, over training, over model size, and of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby

import pandas as pd
import plotly.graph_objects as go

from sinkscope.measurement import SurveyRow, error_bars
from sinkscope.theme import BLUE, SERIES, SINK, figure, series_style

RATE = "sink rate at position 0 (%)"


def over_depth(rows: Sequence[SurveyRow], highest: float) -> go.Figure:
    """Sink rate of each attention layer against its relative depth: 0 the model's first block, 1 its last.

    `highest`: the end of the axis of rates, for figures that can be compared.
    """
    lines = [
        (row.label, stack, list(layers))
        for row in rows
        for stack, layers in groupby(row.by_layer, lambda layer: layer.stack)
    ]
    result = figure(height=340 + 14 * len(lines))  # the legend takes its part
    for index, (label, stack, layers) in enumerate(lines):
        several = len({other for name, other, _ in lines if name == label}) > 1
        name = escape(f"{label}, {stack}" if several else label)
        result.add_scatter(
            x=[layer.depth for layer in layers],
            y=[layer.sink_rate for layer in layers],
            customdata=[layer.layer for layer in layers],
            name=name,
            **series_style(index),
            hovertemplate="layer %{customdata}: %{y:.1f} %<extra>%{fullData.name}</extra>",
        )
    return result.update_layout(
        xaxis={"title": {"text": "relative depth (0 first block, 1 last)"}, "range": [-0.03, 1.03]},
        yaxis={"title": {"text": RATE}, "range": [-0.02 * highest, 1.04 * highest]},
    )


def over_steps(rows: Sequence[SurveyRow]) -> go.Figure:
    """Sink rate over the checkpoints of training runs (Gu et al. 2025, Figure 4); the rows have a curve and a step."""
    result = figure(height=360)
    curves: dict[tuple[str | None, str], list[SurveyRow]] = {}
    for row in rows:
        curves.setdefault((row.curve, row.input), []).append(row)
    for index, ((curve, kind), points) in enumerate(curves.items()):
        points = sorted(points, key=lambda row: row.step or 0)
        result.add_scatter(
            x=[row.step for row in points],
            y=[row.sink_rate for row in points],
            error_y=error_bars(points),
            name=escape(f"{curve}, {kind} input"),
            **series_style(index),
            hovertemplate="step %{x}: %{y:.2f} %<extra>%{fullData.name}</extra>",
        )
    return result.update_layout(
        xaxis={"title": {"text": "training step"}}, yaxis={"title": {"text": RATE}, "rangemode": "tozero"}
    )


def over_size(rows: Sequence[SurveyRow]) -> go.Figure:
    """Sink rate against the number of parameters, on a logarithmic axis, by input (Gu et al. 2025, Table 8)."""
    result = figure(height=380)
    for index, kind in enumerate(dict.fromkeys(row.input for row in rows)):
        points = [row for row in rows if row.input == kind]
        style = series_style(index)
        result.add_scatter(
            x=[row.parameters for row in points],
            y=[row.sink_rate for row in points],
            error_y=error_bars(points),
            text=[escape(row.label) for row in points],
            name=escape(kind),
            mode="markers",
            marker={**style["marker"], "size": 9},
            hovertemplate="%{text}: %{x:.3s} parameters, %{y:.2f} %<extra>%{fullData.name} input</extra>",
        )
    return result.update_layout(
        xaxis={"title": {"text": "parameters (log scale)"}, "type": "log"},
        yaxis={"title": {"text": RATE}, "rangemode": "tozero"},
    )


def paired(frame: pd.DataFrame) -> go.Figure:
    """Both members of each pair on one line; the frame is `Survey.pairs`."""
    result = figure(height=110 + 40 * len(frame))
    names = [escape(f"{row.pair}, {row.input}: {row.first} | {row.second}") for row in frame.itertuples()]
    for name, first, second in zip(names, frame["first_rate"], frame["second_rate"], strict=True):
        line = {"color": SERIES[4], "width": 1.5}
        result.add_scatter(
            x=[first, second], y=[name, name], mode="lines", line=line, showlegend=False, hoverinfo="skip"
        )
    for title, column, color, symbol in (
        ("first of the pair", "first_rate", BLUE, "circle"),
        ("second", "second_rate", SINK, "diamond"),
    ):
        result.add_scatter(
            x=frame[column].tolist(),
            y=names,
            mode="markers",
            name=title,
            marker={"color": color, "symbol": symbol, "size": 11},
            hovertemplate="%{y}: %{x:.2f} %<extra>%{fullData.name}</extra>",
        )
    return result.update_layout(
        xaxis={"title": {"text": RATE}, "rangemode": "tozero"},
        yaxis={"type": "category", "range": [len(frame) - 0.5, -0.5], "showgrid": False},
    )
