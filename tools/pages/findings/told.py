"""What a figure of the page of findings shows, in words, for those who do not see it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from sinkscope.experiments import Observed
from sinkscope.report.experiments.entry import Entry
from sinkscope.report.experiments.figures import doses
from sinkscope.report.experiments.names import number
from tools.pages.findings.figures import mean, metrics_of, values_of
from tools.pages.findings.shapes import curves_of, profile_of, readings_of


def told(entry: Entry) -> str:
    """Means over seeds of what `shapes.drawing` draws, a part for each panel."""
    if curves := curves_of(entry):
        return " ".join(_over_time(entry, name) for name in curves)
    if profile := profile_of(entry):
        return _over_positions(entry, profile)
    if readings := readings_of(entry):
        return " ".join(_over_readings(entry, base, metrics) for base, metrics in readings.items())
    return " ".join(_by_variation(entry, metric) for metric in metrics_of(entry)[: 1 if doses(entry) else None])


def _over_time(entry: Entry, name: str) -> str:
    ends = []
    for label, runs in _finished(entry):
        curves = [[value for value in run.curve(name) if not math.isnan(value)] for run in runs]
        known = [curve for curve in curves if curve]
        if known:
            ends.append(f"{label} {_mean(curve[0] for curve in known)} to {_mean(curve[-1] for curve in known)}")
    return f"{entry.title(name)} over training, mean over seeds at the first and the last step: {', '.join(ends)}."


def _over_positions(entry: Entry, names: dict[str, int]) -> str:
    kind = "sink mass (%)" if "sink_mass" in names else "sink rate (%)"
    tops = []
    for label, runs in _finished(entry):
        read = {at: [run[name] for run in runs if not math.isnan(run[name])] for name, at in names.items()}
        known = {at: math.fsum(values) / len(values) for at, values in read.items() if values}
        if known:
            top = max(known, key=known.__getitem__)
            tops.append(f"{label} {number(known[top])} at {top}")
    return f"{kind} by position, the largest mean over seeds: {', '.join(tops)}."


def _over_readings(entry: Entry, base: str, metrics: list[str]) -> str:
    rows = []
    for label, runs in _finished(entry):
        words = [entry.title(metric).removeprefix(entry.title(base)).removeprefix(", ") for metric in metrics]
        values = [_mean(run[metric] for run in runs if not math.isnan(run[metric])) for metric in metrics]
        pairs = zip(words, values, strict=True)
        rows.append(f"{label} " + "; ".join(f"{word or 'as it is'} {value}" for word, value in pairs))
    return f"{entry.title(base)}, mean over seeds: {' | '.join(rows)}."


def _by_variation(entry: Entry, metric: str) -> str:
    values = zip(entry.variations, values_of(entry, metric), strict=True)
    ours = ", ".join(f"{variation.label} {number(mean(found))}" for variation, found in values)
    other = ", ".join(f"{v.label} {number(v.published[metric])}" for v in entry.variations if metric in v.published)
    published = f" Published: {other}." if other else ""
    return f"{entry.title(metric)}, mean over seeds: {ours}.{published}"


def _finished(entry: Entry) -> Iterable[tuple[str, list[Observed]]]:
    for variation in entry.variations:
        runs = [run for label, run in entry.runs if label == variation.label and run.status == "finished"]
        if runs:
            yield variation.label, runs


def _mean(values: Iterable[float]) -> str:
    return number(mean(list(values)))
