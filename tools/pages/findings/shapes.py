"""Figures of the page of findings whose shape is that of the claim: over time, positions, readings of a run, doses."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sinkscope.experiments import Observed
from sinkscope.report.experiments.entry import Entry
from sinkscope.report.experiments.figures import doses
from sinkscope.theme import GRID, INK, MUTED, PAPER, PURPLE, SERIES
from tools.pages.findings.figures import STYLE, WIDTH, cut, dots, mean, metrics_of, values_of, written

HEIGHT, MOST_LINES = 320, 10
STROKES = ("-", "--")  # of as many lines as there are colors, each
PROFILES = ("sink_mass", "sink")  # of which a run has a number for each of the first positions
ELSEWHERE = re.compile(r"sink_(mass_)?[1-9]\d*|strongest_position")
LOSS, RATE = "validation_loss", "sink/position_0"
STEPS = "training step"
Points = list[tuple[float, float]]


def drawing(entry: Entry) -> str:
    """The figure that shows the first claim which runs bear on, as SVG; "" where no run has a value."""
    if curves_of(entry):
        return over_time(entry)
    if profile_of(entry):
        return over_positions(entry)
    if not metrics_of(entry):
        return ""
    if readings_of(entry):
        return over_readings(entry)
    return over_doses(entry) if doses(entry) else dots(entry)


def curves_of(entry: Entry) -> list[str]:
    """The curves that the first claim reads of which runs have values, and the loss: none where it reads no curve."""
    runs = [run for _, run in entry.runs]
    known: list[str] = []
    for judged in entry.claims:
        names = dict.fromkeys(name for followed in judged.curves.values() for name in followed)
        known = [name for name in names if any(run.curve(name) for run in runs)]
        metrics = [metric for read in judged.reads.values() for metric in read]
        if known or any(not math.isnan(run[metric]) for run in runs for metric in metrics):
            break
    losses = [LOSS] if known and LOSS not in known and any(LOSS in run.curves for _, run in entry.runs) else []
    return [*known, *losses][:2]


def profile_of(entry: Entry) -> dict[str, int]:
    """Metrics of the first positions by name, and the position: empty where the claims are about position 0 alone."""
    asked = [*entry.read, *entry.published]
    if not any(ELSEWHERE.fullmatch(metric) for metric in asked):
        return {}
    for kind in PROFILES:
        first = "sink_mass" if kind == "sink_mass" else "sink_0"
        names = {first: 0, **{f"{kind}_{position}": position for position in range(1, 17)}}
        known = {name: at for name, at in names.items() if any(not math.isnan(run[name]) for _, run in entry.runs)}
        if len(known) > 1 and (kind != "sink_mass" or _complete(entry, known)):
            return known
    return {}


def readings_of(entry: Entry) -> dict[str, list[str]]:
    """The metrics that are read in several ways, by name: empty where the first claim compares no readings of one run.

    Two metrics at most, that of the first claim first, each with all readings of it that claims are made of. A
    reading that others refine, as `tokens=32` is by `tokens=32/epsilon=0.2`, is left out.
    """
    first = entry.claims[0].reads.values() if entry.claims else ()
    found: dict[str, list[str]] = {}
    for metric in dict.fromkeys([*(metric for read in first for metric in read), *entry.read]):
        found.setdefault(metric.partition("/")[0], []).append(metric)
    several = {
        base: [one for one in read if one == base or not any(other.startswith(f"{one}/") for other in read)]
        for base, read in found.items()
        if len(read) > 1
    }
    leading = next(iter(several), "")
    compared = any(sum(metric.partition("/")[0] == leading for metric in read) > 1 for read in first)
    return dict(list(several.items())[:2]) if compared else {}


def over_time(entry: Entry) -> str:
    """Each curve over the steps: seeds thin, their mean thick, a color for each variation; published values beside."""
    names = curves_of(entry)
    labels = _labels(entry)
    with rc_context(STYLE):
        figure, axes, beside = _panels(entry, len(names), labels)
        for index, (panel, name) in enumerate(zip(axes, names, strict=True)):
            lines = {label: [_curve(run, name) for run in _runs(entry, label)] for label in labels}
            _lines(panel, lines, f"ours-{index}")
            _head(panel, f"ours: {entry.title(name)}", STEPS)
        _published(beside, entry, "sink_0", labels)
        return written(figure)


def over_positions(entry: Entry) -> str:
    """The sink at each of the first positions, by variation; published values, of other models, beside."""
    names = profile_of(entry)
    labels = _labels(entry)
    with rc_context(STYLE):
        figure, [panel], beside = _panels(entry, 1, labels)
        lines = {label: [_profile(run, names) for run in _runs(entry, label)] for label in labels}
        _lines(panel, lines, "ours-0", marks=True)
        what = "sink mass (%)" if "sink_mass" in names else "sink rate (%)"
        _head(panel, f"ours: {what}, by position", "position")
        panel.set_xticks(range(0, max(names.values()) + 1, 2))
        if beside is not None:
            for index, label in enumerate(labels):
                given = next(each.published for each in entry.variations if each.label == label)
                points = [(at, given[f"sink_{at}"]) for at in range(17) if f"sink_{at}" in given]
                _marks(beside, points, _color(index), f"published-{index}")
            _head(beside, "published: sink rate (%), other models", "position", PURPLE)
            beside.set_xticks(range(4))
        return written(figure)


def over_readings(entry: Entry) -> str:
    """Each metric over the ways in which it was read, by variation: seeds thin, their mean thick.

    Readings of two kinds, as lengths and thresholds, are joined within one of the first kind.
    """
    found = readings_of(entry)
    labels = _labels(entry)
    with rc_context(STYLE):
        figure, axes, _ = _panels(entry, len(found), labels, published=False)
        for index, (panel, (base, metrics)) in enumerate(zip(axes, found.items(), strict=True)):
            kinds: dict[str, dict[str, int]] = {}
            for place, metric in enumerate(metrics):
                kinds.setdefault(metric.rpartition("/")[0] if metric.count("/") > 1 else base, {})[metric] = place
            for number, places in enumerate(kinds.values()):
                lines = {label: [_profile(run, places) for run in _runs(entry, label)] for label in labels}
                _lines(panel, lines, f"ours-{index}" if not number else f"ours-{index}.{number}", marks=True)
            _head(panel, f"ours: {entry.title(base)}", "")
            words = [entry.title(metric).removeprefix(entry.title(base)).removeprefix(", ") for metric in metrics]
            panel.set_xticks(range(len(words)), [cut(each or "as it is") for each in words])
            panel.set_xlim(-0.4, len(words) - 0.6)
            if len(words) > 3:
                _slanted(panel)
        return written(figure)


def over_doses(entry: Entry) -> str:
    """A metric over the doses, in their order: seeds as circles, their means joined; published values beside."""
    metric = metrics_of(entry)[0]
    places = range(len(entry.variations))
    words = [cut(each.label, 14) for each in entry.variations]
    values = values_of(entry, metric)
    series = doses(entry)
    dose = " and ".join(dict.fromkeys(each.name for each in series))
    with rc_context(STYLE):
        figure, [panel], beside = _panels(entry, 1, [], metric in entry.published)
        means = {
            each.label: (place, math.nan if (value := mean(values[place])) is None else value)
            for place, each in enumerate(entry.variations)
        }
        for index, each in enumerate(series):
            joined = _columns([means[label] for label in each.labels])
            panel.plot(*joined, STROKES[index % 2], color=SERIES[0], linewidth=1.5, gid=f"joined-{index}")
        _marks(panel, [(place, value) for place in places for value in values[place]], SERIES[0], "ours-0")
        _head(panel, f"ours: {entry.title(metric)}", dose)
        panel.set_xticks(places, words)
        if beside is not None:
            given = {e.label: (p, e.published[metric]) for p, e in enumerate(entry.variations) if metric in e.published}
            for each in series:
                joined = _columns([given[label] for label in each.labels if label in given])
                beside.plot(*joined, color=PURPLE, linewidth=1)
            _marks(beside, list(given.values()), PURPLE, "published-0")
            _head(beside, "published, other models", dose, PURPLE)
            beside.set_xticks(places, words)
        for axes in (panel, beside):
            if axes is not None and len(words) > 4:
                _slanted(axes)
        return written(figure)


def _slanted(panel: Axes) -> None:
    """Labels of places that end below them, so that the last one stays inside the figure."""
    panel.tick_params(axis="x", rotation=30)
    for each in panel.get_xticklabels():
        each.set_horizontalalignment("right")


def _panels(
    entry: Entry, ours: int, labels: Sequence[str], published: bool | None = None
) -> tuple[Figure, list[Axes], Axes | None]:
    """Panels of ours side by side, and one for what was published where anything was; the labels are the legend."""
    more = published if published is not None else any(re.match(r"sink_\d", metric) for metric in entry.published)
    figure = Figure((WIDTH / 96, HEIGHT / 96), facecolor=PAPER)
    top = 0.86 - 0.07 * math.ceil(len(labels) / 4)
    places = {"left": 0.07, "right": 0.98, "top": top, "bottom": 0.2, "wspace": 0.28}
    made = figure.subplots(1, ours + more, squeeze=False, gridspec_kw=places)[0]
    for index, label in enumerate(labels):
        row, column = divmod(index, 4)
        figure.text(
            0.07 + 0.23 * column,
            0.96 - 0.07 * row,
            f"{'—-'[index // len(SERIES) % 2]} {cut(label, 26)}",
            color=_color(index),
        )
    return figure, list(made[:ours]), made[ours] if more else None


def _lines(axes: Axes, lines: Mapping[str, Sequence[Points]], name: str, marks: bool = False) -> None:
    for index, found in enumerate(lines.values()):
        color = _color(index)
        each = [points for points in found if points]
        for points in each if len(each) > 1 else []:
            axes.plot(*_columns(points), color=color, alpha=0.35, linewidth=0.7)
        if each:
            over = _columns(_average(each))
            style: dict[str, Any] = {
                "linestyle": STROKES[index // len(SERIES) % 2],
                "marker": "o" if marks else "",
                "markersize": 3,
            }
            axes.plot(*over, color=color, linewidth=1.8, gid=f"{name}-{index}", **style)


def _published(axes: Axes | None, entry: Entry, metric: str, labels: Sequence[str]) -> None:
    if axes is None:
        return
    for index, label in enumerate(labels):
        given = next(each.published for each in entry.variations if each.label == label)
        _marks(axes, [(index, given[metric])] if metric in given else [], _color(index), f"published-{index}")
    _head(axes, f"published: {entry.title(metric)}", "at the end, other models", PURPLE)
    axes.set_xlim(-0.5, len(labels) - 0.5)
    axes.set_xticks([])


def _head(axes: Axes, heading: str, below: str, color: str = INK) -> None:
    axes.set_title(heading, loc="left", color=color, fontsize=9)
    axes.set_xlabel(below, color=MUTED, fontsize=8)
    low, high = axes.get_ylim()
    axes.set_ylim(min(0.0, low), max(high, 1e-9))
    axes.tick_params(length=0, labelsize=7.5, labelcolor=MUTED)
    axes.grid(axis="y", color=GRID)
    axes.set_facecolor("none")
    axes.spines[:].set_visible(False)


def _marks(axes: Axes, points: Sequence[tuple[float, float]], color: str, name: str) -> None:
    if points:
        axes.plot(*_columns(points), "o", color=color, alpha=0.6, markersize=6, markeredgewidth=0, gid=name)


def _labels(entry: Entry) -> list[str]:
    """Variations that have runs, or a published value to be drawn; as many as there are colors to tell apart."""
    return [each.label for each in entry.variations if _runs(entry, each.label)][:MOST_LINES]


def _runs(entry: Entry, label: str) -> list[Observed]:
    return [run for name, run in entry.runs if name == label and run.status == "finished"]


def _curve(run: Observed, name: str) -> Points:
    return [(step, value) for step, value in zip(run.steps, run.curve(name), strict=False) if not math.isnan(value)]


def _profile(run: Observed, names: Mapping[str, int]) -> Points:
    return [(at, run[name]) for name, at in names.items() if not math.isnan(run[name])]


def _complete(entry: Entry, known: Mapping[str, int]) -> bool:
    """Whether every variation with runs has one in which the profile was measured."""
    first = next(iter(known))
    return all(any(not math.isnan(run[first]) for run in _runs(entry, label)) for label in _labels(entry))


def _average(lines: Sequence[Points]) -> Points:
    """Point by point, where all lines have one."""
    shared = sorted(set.intersection(*({x for x, _ in points} for points in lines)))
    tables = [dict(points) for points in lines]
    return [(x, math.fsum(table[x] for table in tables) / len(tables)) for x in shared]


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _color(index: int) -> str:
    return SERIES[index % len(SERIES)]
