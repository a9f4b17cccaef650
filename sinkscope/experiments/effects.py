"""Numbers that decide claims, each made of the runs of one seed; NaN where a run is missing or diverged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from sinkscope.experiments.observed import Observed
from sinkscope.experiments.question import Effect, Runs


def gap(metric: str, larger: str, smaller: str) -> Effect:
    """metric(larger) − metric(smaller)."""
    return lambda runs: runs[larger][metric] - runs[smaller][metric]


def level(metric: str, label: str) -> Effect:
    """The metric itself."""
    return lambda runs: runs[label][metric]


def below(metric: str, label: str) -> Effect:
    """Minus the metric: above −x where the metric is below x."""
    return lambda runs: -runs[label][metric]


def metric_gap(label: str, larger: str, smaller: str) -> Effect:
    """Two metrics of one run: larger − smaller."""
    return lambda runs: runs[label][larger] - runs[label][smaller]


def rising_metrics(label: str, metrics: Sequence[str]) -> Effect:
    """The smallest step of a series of metrics of one run."""
    return lambda runs: min(runs[label][after] - runs[label][before] for before, after in pairwise(metrics))


def rising(metric: str, labels: Sequence[str]) -> Effect:
    """The smallest step of a series that should rise."""
    return lambda runs: min(runs[after][metric] - runs[before][metric] for before, after in pairwise(labels))


def peak(metric: str, labels: Sequence[str], at: str) -> Effect:
    """By how much the value at one label exceeds the largest of the others."""
    return lambda runs: runs[at][metric] - max(runs[label][metric] for label in labels if label != at)


def range_of(metric: str, labels: Sequence[str]) -> Effect:
    """Largest minus smallest."""

    def effect(runs: Runs) -> float:
        values = [runs[label][metric] for label in labels]
        return max(values) - min(values) if not any(map(math.isnan, values)) else math.nan

    return effect


def gap_at_equal_loss(larger: str, smaller: str, metric: str = "sink/position_0") -> Effect:
    """The same difference when both have the validation loss that the slower one ends with.

    Each curve is read where it first reaches that loss, interpolated between evaluations. An operation that learns
    slowly has a low sink rate at equal steps for that reason alone.
    """

    def effect(runs: Runs) -> float:
        one, other = runs[larger], runs[smaller]
        common = max(one["loss"], other["loss"])
        return when_loss_is(one, common, metric) - when_loss_is(other, common, metric)

    return effect


def diverges(label: str) -> Effect:
    """1 where the run diverged, 0 where it did not."""
    return lambda runs: float(runs[label].diverged)


def when_loss_is(run: Observed, loss: float, metric: str) -> float:
    """A curve's value where the validation loss first falls to `loss`; NaN where it never does."""
    losses, values = run.curves.get("validation_loss", ()), run.curves.get(metric, ())
    known = [(a, b) for a, b in zip(losses, values, strict=False) if not (math.isnan(a) or math.isnan(b))]
    before: tuple[float, float] | None = None
    for reached, value in known:
        if reached <= loss:
            if before is None or before[0] == reached:
                return value
            share = (before[0] - loss) / (before[0] - reached)
            return before[1] + share * (value - before[1])
        before = (reached, value)
    return math.nan
