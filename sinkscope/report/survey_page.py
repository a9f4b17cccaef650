"""The page of a survey: many models on several inputs (Gu et al. 2025, Tables 1 and 8)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from itertools import groupby

import pandas as pd
import plotly.graph_objects as go

from sinkscope.measurement import Survey, SurveyRow, error_bars, short_count
from sinkscope.report.page import Headline, Page, Section
from sinkscope.report.provenance import facts
from sinkscope.theme import BLUE, SERIES, SINK, figure, series_style

RATE = "sink rate at position 0 (%)"
TITLES = {
    "label": "model",
    "family": "family",
    "parameters": "parameters",
    "layers": "attention layers",
    "heads": "heads",
    "input": "input",
    "first": "at position 0",
    "sink_rate": "sink rate (%)",
    "low": "95 % from",
    "high": "95 % to",
    "strongest_position": "strongest position",
    "strongest_rate": "its rate (%)",
    "slot_mass": "slot mass",
    "hidden_norm_ratio": "largest hidden norm ratio",
    "value_norm_ratio": "smallest value norm ratio",
    "seconds": "seconds",
    "status": "status",
    "reason": "reason",
}


def survey_page(survey: Survey) -> Page:
    """The page of a survey's rows. Raises `InputError` if a result that a row names is gone."""
    measured = [row for row in survey.rows if row.sink_rate is not None]
    models = len({row.label for row in survey.rows})
    lead = (
        f"{models} {'model' if models == 1 else 'models'}. The sink rate is the percentage of (layer, head) pairs in "
        f"which the first token receives more than {survey.epsilon:g} of the attention, on average over the tokens "
        "that can see it; layers without attention do not count."
    )
    sections = [_bars(survey), *(_depth(measured) if measured else [])]
    if len({row.parameters for row in measured}) > 1:
        sections.append(_size(measured))
    if not survey.pairs().empty:
        sections.append(_pairs(survey))
    if any(row.curve is not None for row in measured):
        sections.append(_curves([row for row in measured if row.curve is not None]))
    sections.append(_table(survey))
    return Page(
        "A survey of attention sinks", lead, _headlines(survey, measured), sections, facts([], survey.records())
    )


def _bars(survey: Survey) -> Section:
    return Section(
        "Sink rate, per model and input",
        "A bar is one model on one kind of input, with its 95 % interval over samples. The table below has the same "
        "numbers, one row per model and one column per input; it marks what could not be measured.",
        {"Sink rate per model and input": survey.plot()},
        survey.wide(),
        unfolded=True,
    )


def _depth(rows: list[SurveyRow]) -> list[Section]:
    inputs = dict.fromkeys(row.input for row in rows)
    chosen = {kind: [row for row in rows if row.input == kind] for kind in inputs}
    frame = pd.DataFrame(
        [
            (row.label, row.input, layer.stack, layer.layer, layer.depth, layer.sink_rate)
            for row in rows
            for layer in row.by_layer
        ],
        columns=["model", "input", "stack", "layer", "relative depth", "sink rate (%)"],
    )
    sentence = (
        "Each mark is an attention layer: the percentage of its heads in which the first token is a sink. Models of "
        "any depth share the axis. Early layers seldom have sinks; a line begins to rise where the sink has formed."
    )
    highest = max([1.0, *(layer.sink_rate or 0.0 for row in rows for layer in row.by_layer)])
    named = {f"{kind} input": over_depth(part, highest) for kind, part in chosen.items()}
    return [Section("Sink rate, by layer", sentence, named, frame)]


def _size(rows: list[SurveyRow]) -> Section:
    frame = pd.DataFrame(
        [(row.label, row.input, short_count(row.parameters) or "–", row.sink_rate, row.low, row.high) for row in rows],
        columns=["model", "input", "parameters", "sink rate (%)", "95 % from", "95 % to"],
    )
    return Section(
        "Sink rate and model size",
        "Each mark is a model on one kind of input, by its number of parameters.",
        {"Sink rate and parameters": over_size(rows)},
        frame,
    )


def _pairs(survey: Survey) -> Section:
    frame = survey.pairs()
    titles = {"first_rate": "first, %", "second_rate": "second, %", "difference": "second − first"}
    return Section(
        "Pairs side by side",
        "Related models, such as a base model and its chat version: the line is the difference.",
        {"Sink rates of pairs": paired(frame)},
        frame.rename(columns=titles),
        unfolded=True,
    )


def _curves(rows: list[SurveyRow]) -> Section:
    frame = pd.DataFrame([(row.curve, row.step, row.input, row.sink_rate, row.low, row.high) for row in rows])
    frame.columns = pd.Index(["run", "step", "input", "sink rate (%)", "95 % from", "95 % to"])
    return Section(
        "Emergence over training",
        "The checkpoints of a training run, each measured like any other model. The sink emerges when the curve leaves "
        "zero.",
        {"Sink rate over checkpoints": over_steps(rows)},
        frame,
    )


def _table(survey: Survey) -> Section:
    columns = {title: _column([getattr(row, name) for row in survey.rows]) for name, title in TITLES.items()}
    frame = pd.DataFrame({**columns, "parameters": [short_count(row.parameters) or "–" for row in survey.rows]})
    missing = sum(row.status != "measured" for row in survey.rows)
    count = f"{missing} of {len(survey.rows)} rows could not be measured; the last column has the reason."
    return Section(
        "All rows",
        f"All results of the survey. {count if missing else 'All rows were measured.'}",
        table=frame,
        unfolded=True,
    )


def _headlines(survey: Survey, measured: list[SurveyRow]) -> list[Headline]:
    if not measured:
        return [Headline("0", f"of {len(survey.rows)} rows measured")]
    highest = max(measured, key=lambda row: row.sink_rate or 0.0)
    lowest = min(measured, key=lambda row: row.sink_rate or 0.0)
    return [
        Headline(f"{len(measured)} of {len(survey.rows)}", "rows measured"),
        Headline(f"{highest.sink_rate:.1f} %", f"highest: {highest.label}, {highest.input} input"),
        Headline(f"{lowest.sink_rate:.1f} %", f"lowest: {lowest.label}, {lowest.input} input"),
    ]


def _column(values: list[object]) -> list[object]:
    """Missing values as the table shows them: NaN in a column of numbers, a dash among words."""
    missing = math.nan if any(isinstance(value, int | float) for value in values) else "–"
    return [missing if value is None else value for value in values]


def over_depth(rows: Sequence[SurveyRow], highest: float) -> go.Figure:
    """Sink rate of each attention layer against its relative depth: 0 is the model's first block, 1 its last.

    `highest`: the upper end of the axis of rates, which figures share.
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
