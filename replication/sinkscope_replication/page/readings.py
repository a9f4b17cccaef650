"""Figures of one metric that was read in several ways: joined over these, or a row for each where words are long."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sinkscope.report.experiments import ExperimentEntry
from sinkscope.report.experiments.names import from_zero, number
from sinkscope.theme import BLUE, GRID, MUTED, PAPER, PURPLE
from sinkscope_replication.page.figures import (
    FOOT,
    HEAD,
    LABELS,
    LINE,
    LONGEST,
    STYLE,
    WIDTH,
    differences_of,
    ends,
    leading,
    marks_of,
    mean,
    written,
)
from sinkscope_replication.page.panels import (
    color_of,
    draw_lines,
    finished,
    head,
    labels_of,
    legend,
    legend_lines,
    named,
    profile_in,
    side_by_side,
)

POSITION = re.compile(r"(sink(?:_mass)?)_(\d+)")
ROOM, BETWEEN, TALL = 600, 50, 30  # pixels: the panels of rows together, the gap between two, a row
Readings = Mapping[str, Sequence[str]]  # what was read, and the metrics that hold its readings


def readings_of(entry: ExperimentEntry) -> dict[str, list[str]]:
    """What was read in several ways, with the metrics: empty unless claims are about that.

    They are where the leading claim compares readings of one run, or most claims do; but two readings of a loss are
    shown by their difference, which is small beside it. Two at most, that of the first such claim first, each with all
    readings of it that claims are made of, as it is first. A reading that others refine, as `tokens=32` is by
    `tokens=32/epsilon=0.2`, is left out.
    """
    lead = leading(entry)
    comparing = [each for each in entry.claims if any(_compared(read) for read in each.reads.values())]
    most = 2 * len(comparing) > sum(bool(each.reads) for each in entry.claims)
    if lead is None or differences_of(entry) or not (lead in comparing or most):
        return {}
    first = (lead if lead in comparing else comparing[0]).reads.values()
    found: dict[str, list[str]] = {}
    for metric in dict.fromkeys([*(kind for read in first for kind in _compared(read)), *entry.read]):
        found.setdefault(kind_of(metric), []).append(metric)
    several = {kind: _in_order(read) for kind, read in found.items() if len(read) > 1}
    return dict(list(several.items())[:2])


def kind_of(metric: str) -> str:
    """What a metric reads, whichever the position and the way: `sink_mass` of `sink_mass_4/swapped=4`."""
    base = metric.partition("/")[0]
    position = POSITION.fullmatch(base)
    return position[1] if position else base


def words_of(entry: ExperimentEntry, metrics: Sequence[str]) -> tuple[str, list[str]]:
    """What these metrics read, and the ways in which they do; the positions among these, where there are several."""
    bases = dict.fromkeys(metric.partition("/")[0] for metric in metrics)
    titles = [entry.title(metric) for metric in metrics]
    if len(bases) == 1:
        [base] = bases
        return entry.title(base), [
            each.removeprefix(entry.title(base)).removeprefix(", ") or "as it is" for each in titles
        ]
    what = "sink mass" if kind_of(metrics[0]) == "sink_mass" else "sink rate"
    return f"{what} (%)", [each.removeprefix(f"{what} ").replace(" (%)", "") for each in titles]


def published_readings(entry: ExperimentEntry) -> str:
    """Of which of `readings_of` there are published values; "" if of none."""
    found = readings_of(entry)
    return next((kind for kind, metrics in found.items() if {*metrics} & {*entry.published}), "")


def over_readings(entry: ExperimentEntry) -> str:
    """Each metric over the ways in which it was read, by variation: as lines, or as rows where words would be cut."""
    words = [word for metrics in readings_of(entry).values() for word in words_of(entry, metrics)[1]]
    return over_rows(entry) if max(map(len, words)) > LONGEST or published_readings(entry) else over_lines(entry)


def over_lines(entry: ExperimentEntry) -> str:
    """Seeds thin, their mean thick. Readings of two kinds, as lengths and thresholds, are joined within the first."""
    found = readings_of(entry)
    labels = labels_of(entry)
    with rc_context(STYLE):
        figure, axes, _ = side_by_side(entry, len(found), labels, published=False)
        for index, (panel, (kind, metrics)) in enumerate(zip(axes, found.items(), strict=True)):
            kinds: dict[str, dict[str, float]] = {}
            for place, metric in enumerate(metrics):
                kinds.setdefault(metric.rpartition("/")[0] if metric.count("/") > 1 else kind, {})[metric] = place
            for part, places in enumerate(kinds.values()):
                lines = {label: [profile_in(run, places) for run in finished(entry, label)] for label in labels}
                draw_lines(panel, lines, f"ours-{index}" if not part else f"ours-{index}.{part}", marks=True)
            what, words = words_of(entry, metrics)
            head(panel, f"ours: {what}", "", zero=from_zero(metrics[0], entry.titles))
            named(panel, range(len(words)), words)
            panel.set_xlim(-0.4, len(words) - 0.6)
        return written(figure)


def over_rows(entry: ExperimentEntry) -> str:
    """A row for each way of reading, a circle for each seed, a bar for their mean, a color for each variation.

    Published values, of other models, stand in a panel beside.
    """
    found = readings_of(entry)
    labels = labels_of(entry)
    given = published_readings(entry)
    told = {kind: words_of(entry, metrics) for kind, metrics in found.items()}
    rows = list(dict.fromkeys(word for _, words in told.values() for word in words))
    above = HEAD + 1.5 * LINE * legend_lines(labels) + LINE * bool(given)
    height = above + TALL * len(rows) + FOOT
    count = len(found) + bool(given)
    with rc_context(STYLE):
        figure = Figure((WIDTH / 96, height / 96), facecolor=PAPER)
        legend(figure, labels)
        places = {"left": LABELS / WIDTH, "right": (LABELS + ROOM) / WIDTH, "top": 1 - above / height}
        places |= {"bottom": FOOT / height, "wspace": BETWEEN / ((ROOM - BETWEEN * (count - 1)) / count)}
        panels: Any = figure.subplots(1, count, squeeze=False, gridspec_kw=places)[0]
        for index, (panel, (kind, metrics)) in enumerate(zip(panels, found.items(), strict=False)):
            what, words = told[kind]
            at = [rows.index(word) for word in words]
            values = [[_known(entry, label, metric) for metric in metrics] for label in labels]
            _rows(panel, at, values, len(rows), f"ours-{index}", from_zero(metrics[0], entry.titles))
            panel.set_title(f"ours: {what}", loc="left", color=BLUE, fontsize=9, pad=18)
        panels[0].set_yticks(range(len(rows)), [textwrap.fill(row, LONGEST + 2) for row in rows])
        if given:
            at = [rows.index(word) for word in told[given][1]]
            values = [[_given(entry, label, metric) for metric in found[given]] for label in labels]
            _rows(panels[-1], at, values, len(rows), "published", True)
            heading = f"published, other models:\n{told[given][0]}"
            panels[-1].set_title(heading, loc="left", color=PURPLE, fontsize=9, pad=18)
        return written(figure)


def _rows(
    axes: Axes, at: Sequence[int], values: Sequence[Sequence[list[float]]], rows: int, name: str, zero: bool
) -> None:
    """Values by variation and reading, `at` whose rows; a variation's circles are in the group `name` and its place."""
    low, high = ends([each for readings in values for each in readings], zero)
    axes.set(xlim=(low, high), ylim=(rows - 0.5, -0.5), facecolor="none")
    axes.set_xticks(marks := marks_of(low, high), [*map(number, marks)], color=MUTED, fontsize=7.5)
    axes.set_yticks([])
    axes.xaxis.tick_top()
    axes.grid(axis="x", color=GRID)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for index, readings in enumerate(values):
        aside = 0.5 * (index + 0.5) / len(values) - 0.25
        points = [(value, row + aside) for row, each in zip(at, readings, strict=True) for value in each]
        means = [
            (found, row + aside) for row, each in zip(at, readings, strict=True) if (found := mean(each)) is not None
        ]
        style: dict[str, Any] = {"color": color_of(index), "clip_on": False, "linestyle": ""}
        axes.plot(*zip(*means, strict=True) if means else ((), ()), "|", markersize=9, markeredgewidth=2, **style)
        group: dict[str, Any] = {"markersize": 5, "markeredgewidth": 0, "alpha": 0.45, "gid": f"{name}-{index}"}
        axes.plot(*zip(*points, strict=True) if points else ((), ()), "o", **group, **style)


def _compared(read: Sequence[str]) -> list[str]:
    """Metrics of one run that are readings of one thing."""
    kinds = [kind_of(metric) for metric in read]
    return [metric for metric, kind in zip(read, kinds, strict=True) if kinds.count(kind) > 1]


def _in_order(read: Sequence[str]) -> list[str]:
    """First as it is; without what others refine."""
    kept = [one for one in read if "/" not in one or not any(other.startswith(f"{one}/") for other in read)]
    return sorted(kept, key=lambda one: "/" in one)


def _known(entry: ExperimentEntry, label: str, metric: str) -> list[float]:
    return [run[metric] for run in finished(entry, label) if not math.isnan(run[metric])]


def _given(entry: ExperimentEntry, label: str, metric: str) -> list[float]:
    published = next(each.published for each in entry.variations if each.label == label)
    return [published[metric]] if metric in published else []
