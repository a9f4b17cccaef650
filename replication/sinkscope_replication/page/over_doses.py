"""The figure of variations of one number: metrics over its doses, in their order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib import rc_context
from matplotlib.axes import Axes

from sinkscope.report.experiments import ExperimentEntry
from sinkscope.report.experiments.doses import Doses, doses, grouped
from sinkscope.report.experiments.names import field, from_zero, number
from sinkscope.theme import INK, PURPLE, SERIES
from sinkscope_replication.page.figures import (
    MOST_METRICS,
    STYLE,
    Shown,
    mean,
    metrics_of,
    published_of,
    values_of,
    written,
)
from sinkscope_replication.page.panels import STROKES, columns, draw_marks, head, named, side_by_side

APART = 0.5  # a gap, in doses
Found = Mapping[str, Sequence[float]]  # values by variation
Groups = Sequence[Mapping[str, float]]  # of variations that stand together, where each of them stands


def over_doses(entry: ExperimentEntry) -> str:
    """Metrics over the doses: seeds as circles, their means joined; published values beside.

    What is in no series stands apart, what is in several has a place in each.
    """
    metrics, given, series = metrics_dosed(entry), published_dosed(entry), doses(entry)
    with rc_context(STYLE):
        figure, panels, beside = side_by_side(entry, len(metrics), [], given is not None)
        for index, (panel, metric) in enumerate(zip(panels, metrics, strict=True)):
            found = dict(zip([each.label for each in entry.variations], values_of(entry, metric), strict=True))
            _draw(panel, entry, found, series, SERIES[0], f"ours-{index}")
            _head(panel, series, f"ours: {metric.title(entry)}", INK, from_zero(metric.metric, entry.titles))
        if beside is not None and given is not None:
            found = {each.label: [*published_of(each, given)] for each in entry.variations}
            _draw(beside, entry, found, series, PURPLE, "published-0")
            what = "published, other models" if len(metrics) == 1 else f"published, other models:\n{given.title(entry)}"
            _head(beside, series, what, PURPLE, from_zero(given.metric, entry.titles))
        return written(figure)


def metrics_dosed(entry: ExperimentEntry) -> list[Shown]:
    """What the figure shows of ours."""
    return metrics_of(entry)[:MOST_METRICS]


def published_dosed(entry: ExperimentEntry) -> Shown | None:
    """Of which of these it shows published values: the first that has several, since one alone is no response."""
    for metric in metrics_dosed(entry):
        if sum(len([*published_of(each, metric)]) for each in entry.variations) > 1:
            return metric
    return None


def _draw(axes: Axes, entry: ExperimentEntry, found: Found, series: Sequence[Doses], color: str, name: str) -> None:
    """The groups `name` and `name.joined-0`, … of the file hold circles and lines; a line stops at what is unknown."""
    places = _places(entry, series)
    each = [pair for group in places for pair in group.items()]
    for index, dosed in enumerate(series):
        group = next(group for group in places if set(dosed.labels) == {*group})
        means = [(at, mean(found[label])) for label, at in group.items()]
        points = [(at, math.nan if value is None else value) for at, value in means]
        axes.plot(*columns(points), STROKES[index % 2], color=color, linewidth=1.5, gid=f"{name}.joined-{index}")
    draw_marks(axes, [(at, value) for label, at in each for value in found[label]], color, name)
    named(axes, [at for _, at in each], [_word(label, series) for label, _ in each])
    axes.set_xlim(each[0][1] - APART, each[-1][1] + APART)


def _places(entry: ExperimentEntry, series: Sequence[Doses]) -> Groups:
    groups = grouped([each.label for each in entry.variations], series)
    before = [sum(map(len, groups[:index])) + APART * index for index in range(len(groups))]
    return [{label: start + at for at, label in enumerate(group)} for start, group in zip(before, groups, strict=True)]


def _word(label: str, series: Sequence[Doses]) -> str:
    """A variation's label, with its dose where it is an operation that has no such option."""
    doses = [each.values[each.labels.index(label)] for each in series if label in each.without]
    return f"{label} ({number(doses[0])})" if doses else label


def _head(axes: Axes, series: Sequence[Doses], heading: str, color: str, zero: bool) -> None:
    head(axes, heading, " and ".join(dict.fromkeys(field(each.name) for each in series)), color, zero)
