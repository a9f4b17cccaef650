"""Panels with lines of variations, which the figures of the page of findings are made of."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sinkscope.experiments import Observed
from sinkscope.report.experiments import ExperimentEntry
from sinkscope.theme import GRID, INK, MUTED, PAPER, PURPLE, SERIES
from sinkscope_replication.page.figures import BESIDE, WIDTH, cut

HEIGHT, MOST_LINES = 320, 10
LETTER = 4.9  # points, of a place's words
STROKES = ("-", "--")  # of as many lines as there are colors, each
Points = list[tuple[float, float]]


def side_by_side(
    entry: ExperimentEntry, ours: int, labels: Sequence[str], published: bool | None = None
) -> tuple[Figure, list[Axes], Axes | None]:
    """Panels of ours side by side, and one for what was published where rates were; the labels are the legend."""
    more = published if published is not None else any(re.match(r"sink_\d", metric) for metric in entry.published)
    figure = Figure((WIDTH / 96, HEIGHT / 96), facecolor=PAPER)
    top = 0.86 - 0.07 * legend_lines(labels)
    places = {"left": 0.07, "right": 0.98, "top": top, "bottom": 0.2, "wspace": 0.28}
    made = figure.subplots(1, ours + more, squeeze=False, gridspec_kw=places)[0]
    legend(figure, labels)
    return figure, list(made[:ours]), made[ours] if more else None


def legend(figure: Figure, labels: Sequence[str]) -> None:
    """The names of variations in their colors, at the top."""
    tall = figure.get_figheight() * 96 / HEIGHT
    count, longest = _columns(labels)
    for index, label in enumerate(labels):
        row, column = divmod(index, count)
        words = f"{'—-'[index // len(SERIES) % 2]} {cut(label, longest)}"
        figure.text(0.07 + 0.93 * column / count, 1 - (0.04 + 0.07 * row) / tall, words, color=color_of(index))


def legend_lines(labels: Sequence[str]) -> int:
    """How many lines the names take."""
    return math.ceil(len(labels) / _columns(labels)[0])


def _columns(labels: Sequence[str]) -> tuple[int, int]:
    """How many names stand side by side, and how many characters they may have: fewer where they are long."""
    return (4, 26) if max(map(len, labels), default=0) <= 26 else (3, 36)


def draw_lines(
    axes: Axes,
    lines: Mapping[str, Sequence[Points]],
    name: str,
    marks: bool = False,
    joined: Callable[[Sequence[Points]], Points] | None = None,
) -> None:
    """A thin line for each seed, a thick one for their mean, a color for each variation, by its place.

    `joined` makes the mean: point by point (`average`) unless another is given.
    """
    for index, found in enumerate(lines.values()):
        color = color_of(index)
        each = [points for points in found if points]
        for points in each if len(each) > 1 else []:
            axes.plot(*columns(points), color=color, alpha=0.35, linewidth=0.7)
        if each:
            over = columns((joined or average)(each))
            style: dict[str, Any] = {
                "linestyle": STROKES[index // len(SERIES) % 2],
                "marker": "o" if marks else "",
                "markersize": 3,
            }
            axes.plot(*over, color=color, linewidth=1.8, gid=f"{name}-{index}", **style)


def draw_published(axes: Axes | None, entry: ExperimentEntry, metric: str, labels: Sequence[str]) -> None:
    """What was published of a metric, in a panel if there is one: a place and a color for each variation."""
    if axes is None:
        return
    for index, label in enumerate(labels):
        given = next(each.published for each in entry.variations if each.label == label)
        draw_marks(axes, [(index, given[metric])] if metric in given else [], color_of(index), f"published-{index}")
    head(axes, f"published: {entry.title(metric)}", "at the end, other models", PURPLE)
    axes.set_xlim(-0.5, len(labels) - 0.5)
    named(axes, range(len(labels)), labels)


def head(axes: Axes, heading: str, below: str, color: str = INK, zero: bool = True) -> None:
    """What a panel shows, and over what. Its axis begins at zero, unless values are below or `zero` is false."""
    room = axes.get_position().width * WIDTH / 6.6  # characters, of so many pixels
    lines = [line for part in heading.split("\n") for line in textwrap.wrap(part, int(room))]
    axes.set_title("\n".join(lines), loc="left", color=color, fontsize=9)
    axes.set_xlabel(below, color=MUTED, fontsize=8)
    low, high = axes.get_ylim()
    axes.set_ylim(min(0.0, low) if zero else low, max(high, 1e-9))
    axes.tick_params(length=0, labelsize=7.5, labelcolor=MUTED)
    axes.grid(axis="y", color=GRID)
    axes.set_facecolor("none")
    axes.spines[:].set_visible(False)


def draw_marks(axes: Axes, points: Sequence[tuple[float, float]], color: str, name: str) -> None:
    """A circle for each point."""
    if points:
        axes.plot(*columns(points), "o", color=color, alpha=0.6, markersize=6, markeredgewidth=0, gid=name)


def draw_name(axes: Axes, points: Sequence[tuple[float, float]], label: str, color: str) -> None:
    """A variation's name beside its highest point."""
    if points:
        axes.annotate(cut(label), max(points, key=lambda point: point[1]), (6, 0), color=color, **BESIDE)


def labels_of(entry: ExperimentEntry) -> list[str]:
    """Variations that have runs, or a published value to be drawn; as many as there are colors to tell apart."""
    return [each.label for each in entry.variations if finished(entry, each.label)][:MOST_LINES]


def finished(entry: ExperimentEntry, label: str) -> list[Observed]:
    """The runs of a variation that came to their end."""
    return [run for name, run in entry.runs if name == label and run.status == "finished"]


def curve_in(run: Observed, name: str) -> Points:
    """A curve of a run over the steps."""
    return [(step, value) for step, value in zip(run.steps, run.curve(name), strict=False) if not math.isnan(value)]


def profile_in(run: Observed, names: Mapping[str, float]) -> Points:
    """Metrics of a run at their places."""
    return [(at, run[name]) for name, at in names.items() if not math.isnan(run[name])]


def named(panel: Axes, places: Sequence[float], words: Sequence[str]) -> None:
    """Places with their words, which slant where they would not stand side by side, and end at their places then."""
    panel.set_xticks(places, [cut(each) for each in words])
    room = panel.get_position().width * WIDTH * 0.75 / max(len(words), 1)  # points, of which a pixel has 0.75
    if max(len(cut(each)) for each in words) * LETTER > room:
        panel.tick_params(axis="x", rotation=30)
        for each in panel.get_xticklabels():
            each.set_horizontalalignment("right")


def average(lines: Sequence[Points]) -> Points:
    """Point by point, where all lines have one."""
    shared = sorted(set.intersection(*({x for x, _ in points} for points in lines)))
    tables = [dict(points) for points in lines]
    return [(x, math.fsum(table[x] for table in tables) / len(tables)) for x in shared]


def columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Points as what matplotlib takes."""
    return [x for x, _ in points], [y for _, y in points]


def color_of(index: int) -> str:
    """The color of a variation, by its place."""
    return SERIES[index % len(SERIES)]
