"""Figures of the page of findings: small SVG files that need neither scripts nor a browser to be drawn."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sinkscope.report.experiments.entry import Entry
from sinkscope.report.experiments.names import number
from sinkscope.theme import BLUE, GRID, INK, MUTED, PAPER, PURPLE

MOST_METRICS = 2
LONGEST = 30  # characters of a label
WIDTH, LABELS, PANEL, GAP, ROW, HEAD, FOOT = 860, 210, 230, 120, 26, 44, 12  # pixels, of which an inch has 96
WIDEST, LINE = 56, 14  # characters of a heading's line, which ends before the panel beside; a further line's pixels
# Text stays text and is taken as it is; the salt makes the names inside a file the same at each writing.
# The font is one that matplotlib brings.
STYLE: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "sinkscope", "text.parse_math": False}
STYLE |= {"font.sans-serif": ["DejaVu Sans"], "font.size": 9}
BESIDE: dict[str, Any] = {"textcoords": "offset points", "va": "center"}
BARE = {"Date": None, "Creator": None}  # what would change with the day and with matplotlib's version


def dots(entry: Entry) -> str:
    """Each metric that an experiment has values of, two at most: seeds as circles, means as bars.

    Published values stand in a panel beside. The panels have axes of their own, because the models differ.
    """
    metrics = metrics_of(entry)
    rows = ROW * len(entry.variations)
    headings = [wrapped(f"ours: {entry.title(metric)}") for metric in metrics]
    head = HEAD + LINE * max(heading.count("\n") for heading in headings)
    height = (head + rows + FOOT) * len(metrics)
    places = {
        "left": LABELS / WIDTH,
        "right": (LABELS + 2 * PANEL + GAP) / WIDTH,
        "top": 1 - head / height,
        "bottom": FOOT / height,
        "wspace": GAP / PANEL,
        "hspace": (head + FOOT) / rows,
    }
    with rc_context(STYLE):
        figure = Figure((WIDTH / 96, height / 96), facecolor=PAPER)
        panels = figure.subplots(len(metrics), 2, squeeze=False, gridspec_kw=places)
        for index, (metric, (ours, others)) in enumerate(zip(metrics, panels, strict=True)):
            _panel(ours, headings[index], BLUE, values_of(entry, metric), f"ours-{index}")
            ours.set_yticks(range(len(entry.variations)), [cut(each.label) for each in entry.variations], color=INK)
            others.set_visible(metric in entry.published)
            published = [[each.published[metric]] if metric in each.published else [] for each in entry.variations]
            _panel(others, "published, other models", PURPLE, published, f"published-{index}")
        return written(figure)


def written(figure: Figure) -> str:
    """A figure as SVG, within `STYLE`."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata=BARE)
    return text.getvalue()


def metrics_of(entry: Entry) -> list[str]:
    """The metrics that the figure of an experiment shows: the first two that its runs have."""
    return [metric for metric in entry.metrics if any(values_of(entry, metric))][:MOST_METRICS]


def values_of(entry: Entry, metric: str) -> list[list[float]]:
    """The values of a metric over seeds, for each variation in order; runs without one are left out."""
    return [
        [run[metric] for label, run in entry.runs if label == variation.label and not math.isnan(run[metric])]
        for variation in entry.variations
    ]


def mean(values: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    return math.fsum(values) / len(values) if values else None


def ends(rows: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Where an axis begins and ends: at zero, or the least where that is below, and at the largest value."""
    values = [value for row in rows for value in row]
    low, high = min([0.0, *values]), max([0.0, *values])
    return low, high if high > low else low + 1


def _panel(axes: Axes, heading: str, color: str, rows: Sequence[Sequence[float]], name: str) -> None:
    """The values of each variation in its row; the group `name` of the file holds a circle for each."""
    low, high = ends(rows)
    axes.set(xlim=(low, high), ylim=(len(rows) - 0.5, -0.5), facecolor="none")
    axes.set_title(heading, loc="left", color=color, fontsize=9, pad=18)
    marks = list(dict.fromkeys((low, 0.0, high)))
    axes.set_xticks(marks, [number(value) for value in marks], color=MUTED, fontsize=7.5)
    axes.xaxis.tick_top()
    axes.set_yticks([])
    axes.grid(axis="x", color=GRID)
    axes.tick_params(length=0)
    axes.tick_params(axis="y", pad=10)
    axes.spines[:].set_visible(False)
    for row, values in enumerate(rows):
        middle = mean(values)
        if middle is None:
            axes.annotate("–", (low, row), (4, 0), color=MUTED, **BESIDE)
            continue
        axes.plot([min(values), max(values)], [row, row], color=color, linewidth=1, clip_on=False)
        axes.plot(middle, row, "|", color=color, markersize=12, markeredgewidth=2, clip_on=False)
        axes.annotate(number(middle), (max(values), row), (7, 0), color=color, **BESIDE)
    at = [row for row, values in enumerate(rows) for _ in values]
    points = [value for values in rows for value in values]
    axes.plot(points, at, "o", color=color, alpha=0.45, markersize=6, markeredgewidth=0, clip_on=False, gid=name)


def wrapped(heading: str) -> str:
    """A heading in lines that do not reach into the panel beside."""
    return "\n".join(textwrap.wrap(heading, WIDEST))


def cut(label: str, longest: int = LONGEST) -> str:
    """A label of no more characters than that."""
    return label if len(label) <= longest else f"{label[: longest - 1]}…"
