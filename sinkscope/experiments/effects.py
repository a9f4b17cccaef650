"""Numbers that decide claims, each made of the runs of one seed; NaN where what it is made of is unknown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np

from sinkscope import ranks
from sinkscope.experiments.curves import SINK, half_way, last, when_loss_is
from sinkscope.experiments.observed import Observed
from sinkscope.experiments.question import Effect, Runs


def gap(metric: str, larger: str, smaller: str) -> Effect:
    """metric(larger) − metric(smaller)."""
    return lambda runs: runs[larger][metric] - runs[smaller][metric]


def level(metric: str, label: str) -> Effect:
    """The metric itself."""
    return lambda runs: runs[label][metric]


def off(metric: str, label: str, expected: float) -> Effect:
    """metric − expected."""
    return lambda runs: runs[label][metric] - expected


def across(larger: tuple[str, str], smaller: tuple[str, str]) -> Effect:
    """The difference of two metrics of two runs, each named by its (label, metric)."""
    return lambda runs: runs[larger[0]][larger[1]] - runs[smaller[0]][smaller[1]]


def metric_gap(label: str, larger: str, smaller: str) -> Effect:
    """Two metrics of one run: larger − smaller."""
    return lambda runs: runs[label][larger] - runs[label][smaller]


def quotient(label: str, metric: str, over: str) -> Effect:
    """Two metrics of one run: metric / over; NaN over 0."""

    def effect(runs: Runs) -> float:
        divisor = runs[label][over]
        return runs[label][metric] / divisor if divisor else math.nan

    return effect


def rising_metrics(label: str, metrics: Sequence[str]) -> Effect:
    """The smallest step of a series of metrics of one run."""
    return lambda runs: _least(runs[label][after] - runs[label][before] for before, after in pairwise(metrics))


def strongest_of(label: str, metrics: Sequence[str]) -> Effect:
    """The largest of some metrics of one run."""
    return lambda runs: _largest(runs[label][metric] for metric in metrics)


def rising(metric: str, labels: Sequence[str]) -> Effect:
    """The smallest step of a series that should rise: above −x where no step falls by x or more."""
    return lambda runs: _least(runs[after][metric] - runs[before][metric] for before, after in pairwise(labels))


def rise(metric: str, labels: Sequence[str], slack: float) -> Effect:
    """Last minus first of a series that should rise; its worst step where one falls by `slack` or more."""

    def effect(runs: Runs) -> float:
        step = rising(metric, labels)(runs)
        return step if math.isnan(step) or step <= -slack else runs[labels[-1]][metric] - runs[labels[0]][metric]

    return effect


def rank_correlation(metric: str, labels: Sequence[str]) -> Effect:
    """Spearman's ρ of the metric with the order of the labels, −1 to 1: how far a series rises on the whole."""

    def effect(runs: Runs) -> float:
        values = [runs[label][metric] for label in labels]
        return _or_unknown(values, lambda: float(ranks.rank_correlation(np.arange(len(values)) * 1.0, _row(values))))

    return effect


def peak(metric: str, labels: Sequence[str], at: str) -> Effect:
    """By how much the value at one label exceeds the largest of the others."""
    return lambda runs: runs[at][metric] - _largest(runs[label][metric] for label in labels if label != at)


def maximum_at(metric: str, labels: Sequence[str], at: str) -> Effect:
    """1 where the maximum over the labels stands at one of them alone, 0 where it does not."""

    def effect(runs: Runs) -> float:
        ahead = peak(metric, labels, at)(runs)
        return math.nan if math.isnan(ahead) else float(ahead > 0)

    return effect


def least_of(metric: str, labels: Sequence[str]) -> Effect:
    """The smallest value over the labels: above x where all are."""
    return lambda runs: _least(runs[label][metric] for label in labels)


def largest_of(metric: str, labels: Sequence[str]) -> Effect:
    """The largest value over the labels: below x where all are."""
    return lambda runs: _largest(runs[label][metric] for label in labels)


def range_of(metric: str, labels: Sequence[str]) -> Effect:
    """Largest minus smallest."""

    def effect(runs: Runs) -> float:
        values = [runs[label][metric] for label in labels]
        return _largest(values) - _least(values)

    return effect


def at_equal_loss(label: str, beside: str, metric: str = SINK) -> Effect:
    """A curve's value where the validation loss is the one that the slower of two runs ends with."""
    return lambda runs: when_loss_is(runs[label], _largest((runs[label]["loss"], runs[beside]["loss"])), metric)


def gap_at_equal_loss(larger: str, smaller: str, metric: str = SINK) -> Effect:
    """The difference when both have the validation loss that the slower one ends with.

    Each curve is read where it first reaches that loss, interpolated between evaluations. An operation that learns
    slowly has a low sink rate at equal steps for that reason alone.
    """
    return lambda runs: at_equal_loss(larger, smaller, metric)(runs) - at_equal_loss(smaller, larger, metric)(runs)


def least_at_equal_loss(labels: Sequence[str], beside: str, metric: str = SINK) -> Effect:
    """The smallest of `at_equal_loss` over the labels."""
    return lambda runs: _least(at_equal_loss(label, beside, metric)(runs) for label in labels)


def growth(label: str, metric: str, share: float) -> Effect:
    """By how much a curve's last value exceeds the one after a share of the steps (0 to 1)."""
    return lambda runs: last(runs[label], metric) - last(runs[label], metric, share)


def lag(label: str, later: str, earlier: str) -> Effect:
    """How much later one curve has made half of its way than another, as a share of the steps."""
    return lambda runs: half_way(runs[label], later) - half_way(runs[label], earlier)


def curve_correlation(label: str, one: str, other: str) -> Effect:
    """Spearman's ρ of two curves of one run, −1 to 1; "step" is the curve of the steps themselves."""

    def effect(runs: Runs) -> float:
        curves = [_curve(runs[label], name) for name in (one, other)]
        return float(ranks.rank_correlation(*curves)) if len(curves[0]) else math.nan

    return effect


def diverges(label: str) -> Effect:
    """1 where the run diverged, 0 where it did not."""
    return lambda runs: float(runs[label].diverged)


def fails(label: str, beside: str, by: float) -> Effect:
    """1 where a run does not converge: it diverged, or its loss ends more than `by` nats above another's; else 0."""

    def effect(runs: Runs) -> float:
        behind = runs[label]["loss"] - runs[beside]["loss"]
        return 1.0 if runs[label].diverged else math.nan if math.isnan(behind) else float(behind > by)

    return effect


def _least(values: Iterable[float]) -> float:
    known = list(values)
    return _or_unknown(known, lambda: min(known))


def _largest(values: Iterable[float]) -> float:
    known = list(values)
    return _or_unknown(known, lambda: max(known))


def _or_unknown(values: Sequence[float], found: Callable[[], float]) -> float:
    """Python's min and max pass over a NaN or not, by its place."""
    return math.nan if any(map(math.isnan, values)) else found()


def _curve(run: Observed, name: str) -> np.ndarray:
    return _row(run.steps if name == "step" else run.curves.get(name, (math.nan,) * len(run.steps)))


def _row(values: Sequence[float] | Sequence[int]) -> np.ndarray:
    return np.array(values, dtype=np.float64)
