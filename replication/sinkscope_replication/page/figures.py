"""Figures of the page of findings: small SVG files that need neither scripts nor a browser to be drawn.

A figure shows what the first claim reads that runs bear on, and reads it as that claim does.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from sinkscope.experiments import Observed, Variation
from sinkscope.report.experiments import ExperimentEntry, Judged
from sinkscope.report.experiments.names import from_zero, number
from sinkscope.theme import BLUE, GRID, INK, MUTED, PAPER, PURPLE

MOST_METRICS, MOST_PUBLISHED = 2, 3  # the third only where it has published values
LONGEST = 30  # characters of a label
WIDTH, LABELS, PANEL, GAP, ROW, HEAD, FOOT = 860, 210, 230, 120, 26, 44, 12  # pixels, of which an inch has 96
MARGIN = 6  # pixels around a text that makes the figure grow, of which other fonts take some
CLOSE = 0.15  # of an axis: the words of marks that are closer stand over each other
WIDEST, LINE = 56, 14  # characters of a heading's line, which ends before the panel beside; a further line's pixels
# Text stays text and is taken as it is; the salt makes the names inside a file the same at each writing.
# The font is one that matplotlib brings. Fitted to few dots its letters are too narrow, and texts are measured by them.
STYLE: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "sinkscope", "text.parse_math": False}
STYLE |= {"font.sans-serif": ["DejaVu Sans"], "font.size": 9, "text.hinting": "none", "figure.dpi": 288}
BESIDE: dict[str, Any] = {"textcoords": "offset points", "va": "center"}
BARE = {"Date": None, "Creator": None}  # what would change with the day and with matplotlib's version


class Shown(NamedTuple):
    """A metric, or by how much it exceeds another one of the same run."""

    metric: str
    minus: str = ""

    def of(self, run: Observed) -> float:
        """Its value in a run."""
        return run[self.metric] - (run[self.minus] if self.minus else 0.0)

    def title(self, entry: ExperimentEntry) -> str:
        """What it is, in words."""
        if not self.minus:
            return entry.title(self.metric)
        words = [reading_in_words(entry, metric) for metric in self]
        return f"{entry.title(family(self.metric))}, {words[0]} minus {words[1]}"

    def ends(self, entry: ExperimentEntry, rows: Sequence[Sequence[float]]) -> tuple[float, float]:
        """Where an axis of these values begins and ends."""
        return ends(rows, bool(self.minus) or from_zero(self.metric, entry.titles))


def dots(entry: ExperimentEntry) -> str:
    """What `metrics_of` names: seeds as circles, means as bars.

    Published values stand in a panel beside. The panels have axes of their own, because the models differ.
    """
    metrics = metrics_of(entry)
    rows = ROW * len(entry.variations)
    headings = [wrapped(f"ours: {metric.title(entry)}") for metric in metrics]
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
            values = values_of(entry, metric)
            _panel(ours, headings[index], BLUE, values, f"ours-{index}", metric.ends(entry, values))
            ours.set_yticks(range(len(entry.variations)), [cut(each.label) for each in entry.variations], color=INK)
            published = [[*published_of(each, metric)] for each in entry.variations]
            others.set_visible(any(published))
            name = f"published-{index}"
            _panel(others, "published, other models", PURPLE, published, name, metric.ends(entry, published))
        return written(figure)


def written(figure: Figure) -> str:
    """A figure as SVG, within `STYLE`; it grows where a text would reach over its edge."""
    text = io.StringIO()
    whole = Bbox.union([figure.bbox_inches, figure.get_tightbbox().padded(MARGIN / 96)])
    figure.savefig(text, format="svg", metadata=BARE, bbox_inches=whole, facecolor=PAPER)
    return text.getvalue()


def leading(entry: ExperimentEntry) -> Judged | None:
    """The first claim that reads what a run has; the first one where none does."""
    runs = [run for _, run in entry.runs]
    for judged in entry.claims:
        metrics = [metric for read in judged.reads.values() for metric in read]
        curves = [name for followed in judged.curves.values() for name in followed]
        if any(run.curve(name) for run in runs for name in curves):
            return judged
        if any(not math.isnan(run[metric]) for run in runs for metric in metrics):
            return judged
    return entry.claims[0] if entry.claims else None


def metrics_of(entry: ExperimentEntry) -> list[Shown]:
    """What the dots or doses of an experiment show: what its leading claim reads first, then `Entry.metrics`.

    The loss stands behind what a claim reads besides, since it guards that; two readings of a loss are shown by their
    difference, which is small beside it.
    """
    lead = leading(entry)
    read = [(label, metric) for label, metrics in lead.reads.items() for metric in metrics] if lead else []
    first = sorted(dict.fromkeys(metric for _, metric in read), key=lambda metric: metric == "loss")[:1]
    every = [Shown(metric) for metric in dict.fromkeys([*first, *entry.metrics])]
    known = [shown for shown in [*differences_of(entry), *every] if any(values_of(entry, shown))]
    more = [shown for shown in known[MOST_METRICS:MOST_PUBLISHED] if shown.metric in {*entry.published} & {*entry.read}]
    return [*known[:MOST_METRICS], *more]


def differences_of(entry: ExperimentEntry) -> list[Shown]:
    """The difference of two readings of a loss that the leading claim takes of one run; empty if it takes none."""
    lead = leading(entry)
    for metrics in lead.reads.values() if lead else ():
        losses = [metric for metric in metrics if not from_zero(metric, entry.titles)]
        if len(losses) == 2 and family(losses[0]) == family(losses[1]):
            return [Shown(*losses)]
    return []


def family(metric: str) -> str:
    """A metric without the way in which it was read."""
    return metric.partition("/")[0]


def reading_in_words(entry: ExperimentEntry, metric: str) -> str:
    """The way in which a metric was read, in words."""
    base = entry.title(family(metric))
    return entry.title(metric).removeprefix(base).removeprefix(", ") or "as it is"


def published_of(variation: Variation, shown: Shown) -> Iterator[float]:
    """The published value of what is shown, if there is one."""
    if shown in [(metric, "") for metric in variation.published]:
        yield variation.published[shown.metric]


def values_of(entry: ExperimentEntry, shown: Shown) -> list[list[float]]:
    """The values of what is shown over seeds, for each variation in order; runs without one are left out."""
    return [
        [value for label, run in entry.runs if label == variation.label and not math.isnan(value := shown.of(run))]
        for variation in entry.variations
    ]


def mean(values: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    return math.fsum(values) / len(values) if values else None


def ends(rows: Sequence[Sequence[float]], zero: bool = True) -> tuple[float, float]:
    """Where an axis begins and ends: at the least and the largest value, and with `zero` at zero where all are above.

    Values that are all the same are told by their distance from zero.
    """
    values = [value for row in rows for value in row]
    low, high = min(values, default=0.0), max(values, default=0.0)
    if zero or high == low:
        low, high = min(0.0, low), max(0.0, high)
    return low, high if high > low else low + 1


def marks_of(low: float, high: float) -> list[float]:
    """The ends of an axis, and zero between them; of two that are close to each other zero stays."""
    if not low < 0 < high:
        return [low, high]
    return [end for end in (low, 0.0, high) if not 0 < abs(end) < CLOSE * (high - low)]


def _panel(
    axes: Axes, heading: str, color: str, rows: Sequence[Sequence[float]], name: str, limits: tuple[float, float]
) -> None:
    """The values of each variation in its row; the group `name` of the file holds a circle for each."""
    low, high = limits
    axes.set(xlim=(low, high), ylim=(len(rows) - 0.5, -0.5), facecolor="none")
    axes.set_title(heading, loc="left", color=color, fontsize=9, pad=18)
    marks = marks_of(low, high)
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
