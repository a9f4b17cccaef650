"""Figures of the page of findings: small SVG files that need neither scripts nor a browser to be drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from sinkscope.report.experiments.entry import Entry
from sinkscope.report.experiments.names import number
from sinkscope.theme import BLUE, FONT, GRID, INK, MUTED, PAPER, PURPLE

Pixels = float | int

WIDTH, LABELS, PANEL, GAP = 860, 210, 230, 60
ROW, HEAD, FOOT = 26, 44, 12
MOST_METRICS = 2
LONGEST = 30  # characters of a label


@dataclass(frozen=True)
class Panel:
    """Values of each variation on one axis, from zero (or the least, where that is below) to the largest."""

    heading: str
    left: Pixels
    colour: str
    rows: Sequence[Sequence[float]]

    @property
    def ends(self) -> tuple[float, float]:
        values = [value for row in self.rows for value in row]
        low, high = min([0.0, *values]), max([0.0, *values])
        return low, high if high > low else low + 1

    def at(self, value: float) -> float:
        """Where a value stands, in pixels."""
        low, high = self.ends
        return self.left + PANEL * (value - low) / (high - low)


def dots(entry: Entry) -> str:
    """Each metric that an experiment has values of, two at most: seeds as circles, means as bars.

    Published values stand in a panel beside. The panels have axes of their own, because the models differ.
    """
    metrics = metrics_of(entry)
    labels = [variation.label for variation in entry.variations]
    block = HEAD + ROW * len(labels) + FOOT
    parts = [
        _block(entry, metric, [_cut(label) for label in labels], index * block) for index, metric in enumerate(metrics)
    ]
    height = block * len(metrics)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="{escape(FONT)}" font-size="12">\n<rect width="{WIDTH}" height="{height}" fill="{PAPER}"/>\n'
        f"{''.join(parts)}</svg>\n"
    )


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


def _block(entry: Entry, metric: str, labels: Sequence[str], top: int) -> str:
    published = [
        [variation.published[metric]] if metric in variation.published else [] for variation in entry.variations
    ]
    panels = [Panel(f"ours: {entry.title(metric)}", LABELS, BLUE, values_of(entry, metric))]
    if any(published):
        panels.append(Panel("published, other models", LABELS + PANEL + 2 * GAP, PURPLE, published))
    bottom = top + HEAD + ROW * len(labels)
    names = "".join(
        _text(LABELS - 14, top + HEAD + ROW * row + 17, label, INK, "end") for row, label in enumerate(labels)
    )
    return names + "".join(_panel(panel, top, bottom) for panel in panels)


def _panel(panel: Panel, top: int, bottom: int) -> str:
    low, high = panel.ends
    parts = [_text(panel.left, top + 20, panel.heading, panel.colour)]
    for value in dict.fromkeys((low, 0.0, high)):
        x = panel.at(value)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top + HEAD - 4}" y2="{bottom}" stroke="{GRID}"/>\n')
        parts.append(_text(x, top + HEAD - 8, number(value), MUTED, "middle", 10))
    for row, values in enumerate(panel.rows):
        parts.append(_marks(panel, values, top + HEAD + ROW * row + 13))
    return "".join(parts)


def _marks(panel: Panel, values: Sequence[float], y: Pixels) -> str:
    middle = mean(values)
    if middle is None:
        return _text(panel.left + 4, y + 4, "–", MUTED)
    x, ends = panel.at(middle), [panel.at(min(values)), panel.at(max(values))]
    bar = f'<line x1="{ends[0]:.1f}" x2="{ends[1]:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{panel.colour}"/>\n'
    circles = "".join(
        f'<circle cx="{panel.at(value):.1f}" cy="{y:.1f}" r="4" fill="{panel.colour}" fill-opacity="0.45"/>\n'
        for value in values
    )
    tick = (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y - 8:.1f}" y2="{y + 8:.1f}" stroke="{panel.colour}" '
        'stroke-width="2.5"/>\n'
    )
    return bar + circles + tick + _text(ends[1] + 9, y + 4, number(middle), panel.colour)


def _text(x: Pixels, y: Pixels, words: str, colour: str, anchor: str = "start", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}" font-size="{size}">'
        f"{escape(words)}</text>\n"
    )


def _cut(label: str) -> str:
    return label if len(label) <= LONGEST else f"{label[: LONGEST - 1]}…"
