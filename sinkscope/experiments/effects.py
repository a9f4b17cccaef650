"""Numbers that decide claims, each made of the runs of one seed; NaN where what it is made of is unknown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from sinkscope.experiments.contrasts import ahead_of, gap, level, log_quotient, log_ratio, metric_gap, off, rising
from sinkscope.experiments.equal_loss import (
    LOSS,
    MASS,
    NORM_RATIO,
    SINK,
    SeedWise,
    at_equal_loss,
    gap_at_equal_loss,
    log_ratio_at_equal_loss,
)
from sinkscope.experiments.observed import Observed
from sinkscope.experiments.question import Runs, SeedEffect
from sinkscope.statistics import ranks

__all__ = [
    "LOSS",
    "MASS",
    "NORM_RATIO",
    "SINK",
    "UNTRAINED",
    "ahead_of",
    "at_equal_loss",
    "behind",
    "curve_correlation",
    "diverges",
    "fallen",
    "gap",
    "gap_at_equal_loss",
    "half_way",
    "largest",
    "largest_of",
    "last",
    "least",
    "least_of",
    "level",
    "log_quotient",
    "log_ratio",
    "log_ratio_at_equal_loss",
    "maximum_at",
    "metric_gap",
    "off",
    "onset",
    "peak",
    "quotient",
    "range_of",
    "rank_correlation",
    "rising",
    "where",
    "where_trained",
]

UNTRAINED = 3.0  # nats: about what lies between a small model's loss at the start and at the end


def quotient(label: str, metric: str, over: str) -> SeedEffect:
    """Two metrics of one run: metric / over; NaN over 0."""

    def effect(runs: Runs) -> float:
        divisor = runs[label][over]
        return runs[label][metric] / divisor if divisor else math.nan

    return effect


def where(label: str, metric: str, least: float, effect: SeedEffect, otherwise: str) -> SeedWise:
    """An effect in the seeds in which a metric of one run is at least so large: what is not there cannot move or go.

    Refused in the others, and why (`otherwise`), so that the absence of the thing is not read as an answer.
    """

    def guarded(runs: Runs) -> float:
        value = effect(runs)  # whatever follows: what a claim reads is seen by asking it
        return value if runs[label][metric] >= least else math.nan

    return SeedWise(guarded, otherwise, lambda runs: runs[label][metric] < least)


def where_trained(labels: Sequence[str], beside: str, by: float, effect: SeedEffect) -> SeedWise:
    """An effect in the seeds in which no run's loss ends more than `by` nats above another's.

    Refused in the others: attention of a model that has learned nothing is nearly uniform, so that it has no sink.
    """

    def behind(runs: Runs) -> bool:
        return max(runs[label]["loss"] for label in labels) > runs[beside]["loss"] + by

    def guarded(runs: Runs) -> float:
        value, untrained = effect(runs), behind(runs)
        return math.nan if untrained else value

    return SeedWise(guarded, f"a loss ends more than {by:g} nats above that of '{beside}'", behind)


def rank_correlation(metric: str, labels: Sequence[str]) -> SeedEffect:
    """Spearman's ρ of the metric with the order of the labels, −1 to 1: how far a series rises on the whole."""

    def effect(runs: Runs) -> float:
        values = _row([runs[label][metric] for label in labels])
        return math.nan if np.isnan(values).any() else float(ranks.rank_correlation(_row(range(len(values))), values))

    return effect


def peak(metric: str, labels: Sequence[str], at: str) -> SeedEffect:
    """By how much the value at one label exceeds the largest of the others."""
    return lambda runs: runs[at][metric] - largest(runs[label][metric] for label in labels if label != at)


def maximum_at(metric: str, labels: Sequence[str], at: str) -> SeedEffect:
    """1 where the maximum over the labels stands at one of them alone, 0 where it does not."""

    def effect(runs: Runs) -> float:
        ahead = peak(metric, labels, at)(runs)
        return math.nan if math.isnan(ahead) else float(ahead > 0)

    return effect


def least_of(metric: str, labels: Sequence[str]) -> SeedEffect:
    """The smallest value over the labels: above x where all are."""
    return lambda runs: least(runs[label][metric] for label in labels)


def largest_of(metric: str, labels: Sequence[str]) -> SeedEffect:
    """The largest value over the labels: below x where all are."""
    return lambda runs: largest(runs[label][metric] for label in labels)


def range_of(metric: str, labels: Sequence[str]) -> SeedEffect:
    """Largest minus smallest."""

    def effect(runs: Runs) -> float:
        values = [runs[label][metric] for label in labels]
        return largest(values) - least(values)

    return effect


def curve_correlation(label: str, one: str, other: str) -> SeedEffect:
    """Spearman's ρ of two curves of one run, −1 to 1; "step" is the curve of the steps themselves."""

    def effect(runs: Runs) -> float:
        curves = [_curve(runs[label], name) for name in (one, other)]
        return float(ranks.rank_correlation(*curves)) if len(curves[0]) else math.nan

    return effect


def diverges(label: str) -> SeedEffect:
    """1 where the run diverged, 0 where it did not."""
    return lambda runs: float(runs[label].diverged)


def behind(label: str, beside: str) -> SeedEffect:
    """By how many nats a run's loss ends above another's; one that diverged counts as `UNTRAINED` above it.

    Not a 1 or 0 of whether it failed: of three seeds that agree nobody knows more than that half of all may not.
    """
    above = gap("loss", label, beside)

    def effect(runs: Runs) -> float:
        value = above(runs)
        return UNTRAINED if runs[label].diverged and not runs[beside].diverged else value

    return effect


def last(run: Observed, metric: str, share: float = 1.0) -> float:
    """A curve's last known value in the first `share` of the steps (0 to 1); NaN where there is none."""
    known = [value for step, value in _known(run, metric) if step <= share * run.steps[-1]]
    return known[-1] if known else math.nan


def half_way(run: Observed, metric: str) -> float:
    """The share of the steps after which a curve is for the first time half way from its first to its last value.

    NaN for a curve of fewer than two values, and for one that ends where it began.
    """
    known = _known(run, metric)
    if len(known) < 2 or known[0][1] == known[-1][1]:
        return math.nan
    (_, first), (end, final) = known[0], known[-1]
    return next(step for step, value in known if (value - first) / (final - first) >= 0.5) / end


def onset(run: Observed, metric: str, level: float) -> float:
    """The share of the steps after which a curve is for the first time at a level or above; 1 where it never is.

    NaN without the curve.
    """
    known = _known(run, metric)
    return next((step for step, value in known if value >= level), known[-1][0]) / known[-1][0] if known else math.nan


def fallen(run: Observed, metric: str, at: float) -> float:
    """Which share of a curve's whole fall, 0 to 1, is behind it after a share of the steps; NaN where there is none."""
    known = _known(run, metric)
    if math.isnan(at) or not known or known[0][1] <= known[-1][1]:
        return math.nan
    then = next(value for step, value in known if step >= at * known[-1][0])
    return (known[0][1] - then) / (known[0][1] - known[-1][1])


def least(values: Iterable[float]) -> float:
    """The smallest; NaN where one is unknown. Python's min and max pass over a NaN or not, by where it stands."""
    known = list(values)
    return math.nan if any(map(math.isnan, known)) else min(known)


def largest(values: Iterable[float]) -> float:
    """The largest; NaN where one is unknown."""
    known = list(values)
    return math.nan if any(map(math.isnan, known)) else max(known)


def _curve(run: Observed, name: str) -> np.ndarray:
    return _row(run.steps if name == "step" else run.curve(name) or (math.nan,) * len(run.steps))


def _row(values: Sequence[float] | Sequence[int]) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def _known(run: Observed, metric: str) -> list[tuple[int, float]]:
    values = zip(run.steps, run.curve(metric), strict=False)
    return [(step, value) for step, value in values if not math.isnan(value)]
