"""Figures of an experiment as plain Plotly JSON: the page has many, and draws them when an experiment is opened."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from sinkscope.experiments import Observed
from sinkscope.report.experiments.doses import Doses, by_dose, doses
from sinkscope.report.experiments.entry import ExperimentEntry
from sinkscope.theme import BLUE, INK, MUTED, PURPLE, layout, series_style, tint

Drawing = dict[str, Any]
Number = float | int | None

SINK, STRONGEST, LOSS, STEPS = "sink/position_0", "sink/strongest", "validation_loss", "steps"
AXES = ("y", "y2")
MOST_VARIATIONS, MOST_LINES, MOST_POINTS = 24, 60, 200
OFFSET = 0.11  # of the distance between two variations: ours to the left, published to the right


def dose_response(entry: ExperimentEntry, metric: str) -> Drawing:
    """A metric of every variation: each seed, their mean and range, and published values on their own axis.

    If one number is varied (`doses`), variations are sorted by it and their means are joined by a line. Runs without a
    value (failed, diverged) are crosses at the bottom.
    """
    labels = by_dose(drawn(entry), doses(entry))
    values: dict[str, list[float]] = {label: [] for label in labels}
    points, without = [], []
    for label, run in _drawn_runs(entry):
        value = run[metric]
        wording = f"{escape(label)}, seed {run.seed}"
        x = labels.index(label) - OFFSET
        if math.isnan(value):
            without.append((x, f"{wording}: {run.status}"))
        else:
            values[label].append(value)
            points.append((x, value, wording))
    data = [_seeds(points), _means(labels, values), *_joined(labels, values, doses(entry))] if points else []
    if without:
        data.append(_crosses(without))
    published = [
        (labels.index(variation.label) + OFFSET, variation.published[metric])
        for variation in entry.variations
        if metric in variation.published and variation.label in labels
    ]
    if published:
        data.append(_published(published))
    axes: Drawing = {
        "xaxis": {
            "tickvals": list(range(len(labels))),
            "ticktext": ["<br>".join(textwrap.wrap(escape(label), 16)) for label in labels],
            "range": [-0.5, len(labels) - 0.5],
            "showgrid": False,
        },
        "yaxis": {"title": {"text": f"ours: {entry.title(metric)}"}, "rangemode": "tozero"},
    }
    if published:
        colors = {"tickfont": {"color": PURPLE}, "title": {"text": "published", "font": {"color": PURPLE}}}
        axes["yaxis2"] = {**colors, "overlaying": "y", "side": "right", "rangemode": "tozero", "showgrid": False}
        axes["yaxis2"]["tickmode"] = "auto"  # else Plotly divides it as the left one, into odd numbers
        axes["margin"] = {"t": 48, "r": 64}
    return {"data": data, "layout": {**layout(340), **axes, "showlegend": True}}


def over_training(entry: ExperimentEntry) -> Drawing:
    """Sink rate above, validation loss below, on one axis of steps: seeds as thin lines, their mean as a thick one.

    The mean is over finished runs; a run that diverged ends at its last step. Runs of other tasks have other curves.
    """
    names = shown_curves(entry)
    domains = ([0.54, 1], [0, 0.46]) if len(names) > 1 else ([0, 1],)
    data: list[Drawing] = []
    axes: Drawing = {"xaxis": {"title": {"text": "training step"}, "anchor": AXES[len(names) - 1]}}
    for name, axis, domain in zip(names, AXES, domains, strict=False):
        data += _lines(entry, STEPS, name, axis, legend=axis == AXES[0])
        fitted = _loss_range(entry) if name == LOSS else {"rangemode": "tozero"}
        axes[axis.replace("y", "yaxis")] = {"title": {"text": entry.title(name)}, "domain": domain, **fitted}
    return {"data": data, "layout": {**layout(_tall(entry, 480)), **axes}}


def at_equal_loss(entry: ExperimentEntry) -> Drawing:
    """Sink rate against validation loss, which falls to the right: runs on a vertical line have equal loss."""
    sink = shown_curves(entry)[0]
    return {
        "data": _lines(entry, LOSS, sink, "y"),
        "layout": {
            **layout(_tall(entry, 380)),
            "xaxis": {
                "title": {"text": entry.title(LOSS)},
                "autorange": "reversed",
                **_loss_range(entry, falling=True),
            },
            "yaxis": {"title": {"text": entry.title(sink)}, "rangemode": "tozero"},
        },
    }


def shown_curves(entry: ExperimentEntry) -> list[str]:
    """The curves drawn over steps: sink rate and validation loss, or the first two curves that the runs have.

    The rate is that of position 0, or that of the strongest position if claims are about other positions.
    """
    names = dict.fromkeys(name for _, run in entry.runs if run.steps for name in run.curves)
    elsewhere = any(re.match(r"strongest|sink_[1-9]", metric) for metric in entry.metrics)
    sink = STRONGEST if elsewhere and STRONGEST in names else SINK
    return [name for name in (sink, LOSS) if name in names] or list(names)[:2]


def compares_losses(names: Sequence[str]) -> bool:
    """Whether these curves are a sink rate and the validation loss."""
    return len(names) > 1 and names[1] == LOSS


def curves(run: Observed, names: Sequence[str]) -> dict[str, list[Number]] | None:
    """The curves of one run that a reader selects; None if it kept none of these."""
    known = {name: _thinned(run.curves[name]) for name in names if name in run.curves}
    return {STEPS: _thinned(run.steps), **known} if known and run.steps else None


def drawn(entry: ExperimentEntry) -> list[str]:
    """The variations that figures show: the first 24."""
    labels = dict.fromkeys([*(variation.label for variation in entry.variations), *(label for label, _ in entry.runs)])
    return list(labels)[:MOST_VARIATIONS]


def _drawn_runs(entry: ExperimentEntry) -> list[tuple[str, Observed]]:
    labels = set(drawn(entry))
    return [(label, run) for label, run in entry.runs if label in labels]


def _lines(entry: ExperimentEntry, x: str, y: str, axis: str, legend: bool = True) -> list[Drawing]:
    by_label: dict[str, list[Observed]] = {}
    for label, run in _drawn_runs(entry):
        by_label.setdefault(label, []).append(run)
    room = MOST_LINES
    data: list[Drawing] = []
    for index, (label, runs) in enumerate(by_label.items()):
        having = [run for run in runs if run.steps and y in run.curves]
        lines = [(run.seed, *_points(run, x, y)) for run in having]
        whole = [line for line, run in zip(lines, having, strict=True) if run.status == "finished"]
        style = series_style(index)
        name = escape(label)
        shared = {"type": "scatter", "mode": "lines", "legendgroup": name, "name": name, "yaxis": axis}
        pale = {"color": tint(str(style["line"]["color"]), 0.4), "width": 1}
        thin = lines[:room] if len(lines) > len(whole) or len(whole) > 1 else []
        room -= len(thin)
        for seed, xs, ys in thin:
            data.append({**shared, "x": xs, "y": ys, "line": pale, "showlegend": False, "hoverinfo": "skip"})
            data[-1]["meta"] = seed
        xs, ys = _mean(whole)
        hover = f"%{{x:.4~g}}: %{{y:.3f}}<extra>{name}, mean of {len(whole)}</extra>"
        thick = {**shared, "x": xs, "y": ys, "line": {**style["line"], "width": 2.5}, "showlegend": legend}
        data.append({**thick, "hovertemplate": hover})
    return data


def _loss_range(entry: ExperimentEntry, falling: bool = False) -> Drawing:
    """The axis of the loss, fitted to finished runs: others would stretch it too far."""
    runs = [run for _, run in entry.runs if LOSS in run.curves]
    whole = [value for run in runs if run.status == "finished" for value in run.curves.get(LOSS, ())]
    known = [value for value in whole if math.isfinite(value)]
    if not known or all(run.status == "finished" for run in runs):
        return {}
    room = 0.04 * (max(known) - min(known)) or 0.1
    ends = [min(known) - room, max(known) + room]
    return {"range": ends[::-1] if falling else ends, "autorange": False}


def _points(run: Observed, x: str, y: str) -> tuple[list[Number], list[Number]]:
    xs = run.steps if x == STEPS else run.curves.get(x, ())
    pairs = [(a, b) for a, b in zip(xs, run.curves.get(y, ()), strict=False)]
    return _thinned([a for a, _ in pairs]), _thinned([b for _, b in pairs])


def _mean(
    lines: Iterable[tuple[int, Sequence[Number], Sequence[Number]]],
) -> tuple[list[Number], list[Number]]:
    """The mean over seeds, point by point, at the evaluations that all of them have."""
    points = zip(*(zip(xs, ys, strict=True) for _, xs, ys in list(lines)), strict=False)
    means = [[_average(values) for values in zip(*point, strict=True)] for point in points]
    return [x for x, _ in means], [y for _, y in means]


def _average(values: Sequence[Number]) -> Number:
    known = [value for value in values if value is not None]
    return round(math.fsum(known) / len(known), 5) if len(known) == len(values) else None


def _thinned(values: Sequence[Number]) -> list[Number]:
    """At most 200 points, including the last; None, which leaves a gap in a line, for values that are not finite."""
    stride = math.ceil(len(values) / MOST_POINTS) or 1
    kept = [*values[: len(values) - 1 : stride], *values[-1:]]
    return [round(value, 5) if value is not None and math.isfinite(value) else None for value in kept]


def _seeds(points: Sequence[tuple[float, float, str]]) -> Drawing:
    return {
        **_marks([x for x, _, _ in points], [value for _, value, _ in points]),
        "name": "each seed",
        "text": [wording for _, _, wording in points],
        "marker": {"color": tint(BLUE, 0.55), "size": 8},
        "hovertemplate": "%{text}: %{y:.4g}<extra></extra>",
    }


def _means(labels: Sequence[str], values: Mapping[str, Sequence[float]]) -> Drawing:
    known = [(labels.index(label) - OFFSET, seeds) for label, seeds in values.items() if seeds]
    means = [math.fsum(seeds) / len(seeds) for _, seeds in known]
    return {
        **_marks([x for x, _ in known], means),
        "name": "mean and range",
        "marker": {"color": BLUE, "size": 20, "symbol": "line-ew", "line": {"color": BLUE, "width": 3}},
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [max(seeds) - mean for (_, seeds), mean in zip(known, means, strict=True)],
            "arrayminus": [mean - min(seeds) for (_, seeds), mean in zip(known, means, strict=True)],
            "color": BLUE,
            "thickness": 1.5,
            "width": 0,
        },
        "hovertemplate": "mean %{y:.4g}<extra></extra>",
    }


def _joined(labels: Sequence[str], values: Mapping[str, Sequence[float]], series: Sequence[Doses]) -> list[Drawing]:
    """A line through the means of each series, with a gap at a dose without runs."""
    lines = []
    for each in series:
        shown = sorted((label for label in each.labels if label in labels), key=labels.index)
        means = [math.fsum(values[label]) / len(values[label]) if values[label] else None for label in shown]
        line = {"mode": "lines", "line": {"color": BLUE, "width": 1, "dash": "dot"}, "showlegend": False}
        lines.append({**_marks([labels.index(label) - OFFSET for label in shown], means), **line, "hoverinfo": "skip"})
    return lines


def _published(points: Sequence[tuple[float, float]]) -> Drawing:
    return {
        **_marks([x for x, _ in points], [value for _, value in points]),
        "name": "published (right axis)",
        "yaxis": "y2",
        "marker": {"color": PURPLE, "size": 11, "symbol": "diamond-open", "line": {"width": 2}},
        "hovertemplate": "published: %{y:.4g}<extra></extra>",
    }


def _crosses(points: Sequence[tuple[float, str]]) -> Drawing:
    return {
        **_marks([x for x, _ in points], [0.0] * len(points)),
        "name": "no value",
        "text": [wording for _, wording in points],
        "marker": {"color": INK, "size": 9, "symbol": "x-thin", "line": {"color": MUTED, "width": 2}},
        "hovertemplate": "%{text}<extra></extra>",
        "cliponaxis": False,
    }


def _marks(x: Sequence[float], y: Sequence[Number]) -> Drawing:
    return {"type": "scatter", "mode": "markers", "x": list(x), "y": list(y)}


def _tall(entry: ExperimentEntry, height: int) -> int:
    """The height with room for the legend of many variations above the figure."""
    return height + 10 * max(0, len(drawn(entry)) - 4)
