"""What a figure of the page of findings shows, in words, for those who do not see it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from sinkscope.experiments import Observed
from sinkscope.report.experiments import ExperimentEntry
from sinkscope.report.experiments.doses import doses
from sinkscope.report.experiments.names import number
from sinkscope_replication.page.equal_loss import against_loss, at_loss, compared_of, mean_against_loss
from sinkscope_replication.page.figures import Shown, mean, metrics_of, published_of, values_of
from sinkscope_replication.page.over_doses import metrics_dosed, published_dosed
from sinkscope_replication.page.panels import labels_of
from sinkscope_replication.page.readings import published_readings, readings_of, words_of
from sinkscope_replication.page.shapes import curves_of, profile_of

POSITIONS = tuple(f"sink_{position}" for position in range(17))


def told(entry: ExperimentEntry) -> str:
    """Means over seeds of what `shapes.drawing` draws, a part for each panel."""
    if compared := compared_of(entry):
        return _over_loss(entry, compared) + _published(entry, ["sink_0"])
    if curves := curves_of(entry):
        return " ".join(_over_time(entry, name) for name in curves) + _published(entry, ["sink_0"])
    if profile := profile_of(entry):
        return _over_positions(entry, profile) + _published(entry, POSITIONS)
    if readings := readings_of(entry):
        return " ".join(_over_readings(entry, kind, metrics) for kind, metrics in readings.items())
    if doses(entry):
        given = published_dosed(entry)
        return " ".join(_by_variation(entry, metric, metric == given) for metric in metrics_dosed(entry))
    return " ".join(_by_variation(entry, metric) for metric in metrics_of(entry))


def _published(entry: ExperimentEntry, metrics: Sequence[str]) -> str:
    """What stands in the panel beside lines: of the variations with runs, the largest of these metrics."""
    tops = []
    for each in entry.variations:
        known = [metric for metric in metrics if metric in each.published]
        if known and each.label in labels_of(entry):
            top = max(known, key=each.published.__getitem__)
            at = f" at {top.removeprefix('sink_')}" if len(metrics) > 1 else ""
            tops.append(f"{each.label} {number(each.published[top])}{at}")
    what = "sink rate (%), the largest" if len(metrics) > 1 else entry.title(*metrics)
    return f" Published: {what}: {', '.join(tops)}." if tops else ""


def _over_loss(entry: ExperimentEntry, name: str) -> str:
    """Each mean at the loss that all of them come to."""
    lines = {}
    for label, runs in _finished(entry):
        known = [points for run in runs if (points := against_loss(run, name))]
        if known:
            lines[label] = mean_against_loss(known)
    shared = max(min(loss for loss, _ in points) for points in lines.values())
    there = ", ".join(f"{label} {number(at_loss(points, shared))}" for label, points in lines.items())
    return (
        f"{entry.title(name)} against the validation loss (nats), mean over seeds at {number(shared)}, the least loss "
        f"that all come to: {there}."
    )


def _over_time(entry: ExperimentEntry, name: str) -> str:
    ends = []
    for label, runs in _finished(entry):
        curves = [[value for value in run.curve(name) if not math.isnan(value)] for run in runs]
        known = [curve for curve in curves if curve]
        if known:
            ends.append(f"{label} {_mean(curve[0] for curve in known)} to {_mean(curve[-1] for curve in known)}")
    return f"{entry.title(name)} over training, mean over seeds at the first and the last step: {', '.join(ends)}."


def _over_positions(entry: ExperimentEntry, names: dict[str, int]) -> str:
    kind = "sink mass (%)" if "sink_mass" in names else "sink rate (%)"
    tops = []
    for label, runs in _finished(entry):
        read = {at: [run[name] for run in runs if not math.isnan(run[name])] for name, at in names.items()}
        known = {at: math.fsum(values) / len(values) for at, values in read.items() if values}
        if known:
            top = max(known, key=known.__getitem__)
            tops.append(f"{label} {number(known[top])} at {top}")
    return f"{kind} by position, the largest mean over seeds: {', '.join(tops)}."


def _over_readings(entry: ExperimentEntry, kind: str, metrics: list[str]) -> str:
    rows = []
    what, words = words_of(entry, metrics)
    for label, runs in _finished(entry):
        values = [_mean(run[metric] for run in runs if not math.isnan(run[metric])) for metric in metrics]
        rows.append(f"{label} " + "; ".join(f"{word} {value}" for word, value in zip(words, values, strict=True)))
    told = f"{what}, mean over seeds: {' | '.join(rows)}."
    if kind != published_readings(entry):
        return told
    pairs = [(each.label, word, each.published[metric]) for each in entry.variations
             for word, metric in zip(words, metrics, strict=True) if metric in each.published]  # fmt: skip
    return f"{told} Published: {'; '.join(f'{label} {word} {number(value)}' for label, word, value in pairs)}."


def _by_variation(entry: ExperimentEntry, shown: Shown, beside: bool = True) -> str:
    """`beside`: whether published values are drawn."""
    values = zip(entry.variations, values_of(entry, shown), strict=True)
    ours = ", ".join(f"{variation.label} {number(mean(found))}" for variation, found in values)
    given = [(each.label, value) for each in entry.variations for value in published_of(each, shown) if beside]
    other = ", ".join(f"{label} {number(value)}" for label, value in given)
    published = f" Published: {other}." if other else ""
    return f"{shown.title(entry)}, mean over seeds: {ours}.{published}"


def _finished(entry: ExperimentEntry) -> Iterable[tuple[str, list[Observed]]]:
    for variation in entry.variations:
        runs = [run for label, run in entry.runs if label == variation.label and run.status == "finished"]
        if runs:
            yield variation.label, runs


def _mean(values: Iterable[float]) -> str:
    return number(mean(list(values)))
