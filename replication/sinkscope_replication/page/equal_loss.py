"""The figure of claims at equal validation loss: a curve against the loss, to be read where losses agree."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib import rc_context

from sinkscope.experiments import Observed
from sinkscope.report.experiments import ExperimentEntry
from sinkscope.report.experiments.names import title
from sinkscope_replication.page.figures import STYLE, leading, written
from sinkscope_replication.page.panels import (
    Points,
    draw_lines,
    draw_published,
    finished,
    head,
    labels_of,
    side_by_side,
)

LOSS = "validation_loss"
CURVE_OF = {"sink_mass": "sink/mass", "sink_0": "sink/position_0", "norm_ratio": "sink/hidden_norm_ratio"}
MOST = 2.0  # nats above the least loss: before that nothing is learned that could be compared


def compared_of(entry: ExperimentEntry) -> str:
    """The curve that the leading claim reads at a certain loss, or whose end it reads where losses agree; "" if none.

    The latter is so where it asks for the loss of the runs beside another metric.
    """
    lead = leading(entry)
    if lead is None:
        return ""
    read = [name for names in lead.at_loss.values() for name in names if name != LOSS]
    ends = [metric for metrics in lead.reads.values() if "loss" in metrics for metric in metrics]
    named = [*read, *(CURVE_OF[metric] for metric in ends if metric in CURVE_OF)]
    runs = [run for label in labels_of(entry) for run in finished(entry, label)]
    known = (name for name in named if any(against_loss(run, name) for run in runs))
    return next(known, "")


def over_loss(entry: ExperimentEntry) -> str:
    """The curve against the validation loss, which falls to the right: on a vertical line, runs have equal loss."""
    name = compared_of(entry)
    labels = labels_of(entry)
    with rc_context(STYLE):
        figure, [panel], beside = side_by_side(entry, 1, labels)
        lines = {label: [against_loss(run, name) for run in finished(entry, label)] for label in labels}
        draw_lines(panel, lines, "ours-0", joined=mean_against_loss)
        least = min(loss for each in lines.values() for points in each for loss, _ in points)
        panel.set_xlim(least + MOST, least - 0.03 * MOST)
        head(panel, f"ours: {entry.title(name)}", f"{title(LOSS)}, falling to the right")
        draw_published(beside, entry, "sink_0", labels)
        return written(figure)


def against_loss(run: Observed, name: str) -> Points:
    """Losses and values of a curve at the evaluations of a run that have both."""
    pairs = zip(run.curves.get(LOSS, ()), run.curves.get(name, ()), strict=False)
    return [(loss, value) for loss, value in pairs if not math.isnan(loss) and not math.isnan(value)]


def mean_against_loss(lines: Sequence[Points]) -> Points:
    """The mean over seeds of both, evaluation by evaluation, as far as all of them come."""
    count = len(lines)
    return [
        (math.fsum(loss for loss, _ in each) / count, math.fsum(value for _, value in each) / count)
        for each in zip(*lines, strict=False)
    ]


def at_loss(points: Points, loss: float) -> float | None:
    """The value where a mean first comes to a loss; None where it never does."""
    return next((value for reached, value in points if reached <= loss), None)
