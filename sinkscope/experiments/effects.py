"""What decides claims: numbers made from runs, and whether a model has something.

A difference of two variations does not need runs that share a seed: the seed says how a model starts, and other
variations start otherwise. So a `Contrast`, a sum of means, uses every run of each variation. Other effects are
functions of the runs of one seed, by label. A number is NaN where a run does not have what it is made of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sinkscope.errors import InputError, unknown
from sinkscope.experiments.observed import FEWEST, Observed, on_few_tokens
from sinkscope.statistics import ranks
from sinkscope.statistics.estimates import Estimate, estimate

Runs = Mapping[str, Observed]  # of one seed, by the label of their variation
SeedEffect = Callable[[Runs], float]
RunMetric = Callable[[Observed], float]

LOSS, SINK, MASS, NORM_RATIO = "validation_loss", "sink/position_0", "sink/mass", "sink/hidden_norm_ratio"
AROUND = 2  # evaluations on each side of the one at which a loss is reached
FORMED = 0.5  # of a run's final sink; below that it has not formed
FINAL = {MASS: 1.0, SINK: 3.0}  # percent: a run that ends with less has no sink that could form; the control must


# Whether a model has something: count claims.


@dataclass(frozen=True)
class Has:
    """Whether a model has something: a metric of its run, less another one (`minus`), lies between two limits.

    `Has("sink_0", 3.0)`: at least 3 % of heads have their sink at position 0. None, which leaves the model out, where
    the metric was not measured; `diverged` says what a run that diverged counts as, where it counts.
    """

    metric: str
    at_least: float = -math.inf
    at_most: float = math.inf
    minus: str = ""
    diverged: bool | None = None

    def __post_init__(self) -> None:
        require_rate(self.metric)
        if not self.at_least <= self.at_most:
            raise InputError(f"Has('{self.metric}'): at_least={self.at_least:g} exceeds at_most={self.at_most:g}")

    def __call__(self, run: Observed) -> bool | None:
        value = run[self.metric] - (run[self.minus] if self.minus else 0.0)
        if run.diverged and self.diverged is not None:
            return self.diverged
        return None if math.isnan(value) else self.at_least <= value <= self.at_most

    def __str__(self) -> str:
        name = f"{self.metric} − {self.minus}" if self.minus else self.metric
        if math.isinf(self.at_most):
            return f"{name} ≥ {self.at_least:g}"
        low = "" if math.isinf(self.at_least) else f"{self.at_least:g} ≤ "
        return f"{low}{name} ≤ {self.at_most:g}"


Property = Has | Callable[[Observed], bool | None]


@dataclass(frozen=True)
class Shares:
    """How many models have something: of one group of variations, or of a first and of a second one.

    Models of a group are counted together. The first group is the one that is claimed to have it. Raises `InputError`
    for a group without variations, and for a variation that occurs twice.
    """

    groups: tuple[tuple[str, ...], ...]
    has: Property

    def __post_init__(self) -> None:
        if not all(self.groups):
            raise InputError("a count of models needs a variation in each group")
        _check_different([label for group in self.groups for label in group], "a count of models")

    def __call__(self, runs: Runs) -> float:
        """The share of this seed's models that have it; of two groups the difference. NaN where one is not known."""
        answers = [[self.has(runs[label]) for label in group] for group in self.groups]
        if any(None in group for group in answers):
            return math.nan
        first, *second = (sum(map(bool, group)) / len(group) for group in answers)
        return first - sum(second)

    @property
    def labels(self) -> tuple[str, ...]:
        """The variations that it reads."""
        return tuple(dict.fromkeys(label for group in self.groups for label in group))


# Sums of means.


@dataclass(frozen=True)
class Term:
    """A number of one variation's runs, and its weight."""

    label: str
    weight: float
    read: RunMetric


@dataclass(frozen=True)
class Contrast:
    """Σ weight · mean(read) over runs, plus a constant. Called with the runs of one seed it gives that seed's value."""

    terms: tuple[Term, ...]
    constant: float = 0.0

    def __call__(self, runs: Runs) -> float:
        return math.fsum([self.constant, *(term.weight * term.read(runs[term.label]) for term in self.terms)])

    def __sub__(self, other: Contrast) -> Contrast:
        """One effect minus another."""
        turned = tuple(replace(term, weight=-term.weight) for term in other.terms)
        return Contrast(self.terms + turned, self.constant - other.constant)

    @property
    def labels(self) -> tuple[str, ...]:
        """The variations that it reads."""
        return tuple(dict.fromkeys(term.label for term in self.terms))

    def part(self, label: str, run: Observed) -> float:
        """What one run contributes: terms of one variation are added within its runs."""
        return math.fsum(term.weight * term.read(run) for term in self.terms if term.label == label)

    def over(self, runs: Mapping[str, Sequence[Observed]]) -> Estimate:
        """The effect over all runs of each variation; NaN where one of them has no value."""
        # One sample for each label. Terms of one label are read from the same runs, so they are not independent: they
        # are added within a run, before any variance is taken.
        effect = estimate([(1.0, [self.part(label, run) for run in runs[label]]) for label in self.labels])
        return replace(effect, mean=effect.mean + self.constant)


def require_rate(name: str) -> None:
    """Raises `InputError` for a rate on fewer than 32 tokens, where uniform attention gives a first token much."""
    if on_few_tokens(name):
        raise InputError(f"'{name}': no sink rate is read on fewer than {FEWEST} tokens, nearest: tokens={FEWEST}")


def _check_different(names: Sequence[str], what: str) -> None:
    """Raises `InputError` for a name that occurs twice: nothing is compared with itself."""
    if twice := next((name for name in names if list(names).count(name) > 1), None):
        raise InputError(f"{what} reads '{twice}' twice: compare different ones")


def metric(name: str) -> RunMetric:
    """A metric of a run. Raises `InputError` for a rate on fewer than 32 tokens."""
    require_rate(name)
    return lambda run: run[name]


def log_metric(name: str) -> RunMetric:
    """Its natural logarithm; NaN where it is not positive."""

    def read_log(run: Observed) -> float:
        value = run[name]
        return math.log(value) if value > 0 else math.nan

    return read_log


def gap(name: str, larger: str, smaller: str) -> Contrast:
    """metric(larger) − metric(smaller)."""
    _check_different((larger, smaller), f"gap('{name}')")
    return Contrast((Term(larger, 1.0, metric(name)), Term(smaller, -1.0, metric(name))))


def log_ratio(name: str, larger: str, smaller: str) -> Contrast:
    """log(metric(larger) / metric(smaller)): for norms, masses and kurtoses, which differ by factors."""
    _check_different((larger, smaller), f"log_ratio('{name}')")
    return Contrast((Term(larger, 1.0, log_metric(name)), Term(smaller, -1.0, log_metric(name))))


def level(name: str, label: str) -> Contrast:
    """The metric itself."""
    return Contrast((Term(label, 1.0, metric(name)),))


def log_level(name: str, label: str) -> Contrast:
    """The logarithm of a metric: for a norm or a mass of one variation, against a margin with `above_ratio`."""
    return Contrast((Term(label, 1.0, log_metric(name)),))


def metric_gap(label: str, larger: str, smaller: str) -> Contrast:
    """Two metrics of one run: larger − smaller."""
    _check_different((larger, smaller), f"metric_gap('{label}')")
    return Contrast((Term(label, 1.0, metric(larger)), Term(label, -1.0, metric(smaller))))


def log_quotient(label: str, over: str, under: str) -> Contrast:
    """log(over / under) of two metrics of one run."""
    _check_different((over, under), f"log_quotient('{label}')")
    return Contrast((Term(label, 1.0, log_metric(over)), Term(label, -1.0, log_metric(under))))


def rising(name: str, labels: Sequence[str], log: bool = False) -> Contrast:
    """How much a series rises from its first label to its last, along the line fitted by least squares to their order.

    b (k − 1) with b = Σ (i − ī) x_i / Σ (i − ī)²; of two labels their difference. The middle of an odd number has no
    weight, but its runs are required: without them the series is not known. `log`: of the metric's logarithm, so that
    `above_ratio` asks by which factor it rises.
    """
    _check_several(labels, f"rising('{name}')")
    middle, last_place = (len(labels) - 1) / 2, len(labels) - 1
    scale = last_place / math.fsum((place - middle) ** 2 for place in range(len(labels)))
    weights = [(place - middle) * scale for place in range(len(labels))]
    reading = log_metric(name) if log else metric(name)
    return Contrast(tuple(Term(label, w, reading) for label, w in zip(labels, weights, strict=True)))


def _check_several(labels: Sequence[str], what: str) -> None:
    if len(labels) < 2:
        raise InputError(f"{what} needs at least two labels, not {len(labels)}")
    _check_different(labels, what)


# Effects within a seed.


@dataclass(frozen=True)
class SeedWise:
    """An effect made within a seed, and why it may have no value although the runs are whole."""

    effect: SeedEffect
    refusal: str

    def __call__(self, runs: Runs) -> float:
        return self.effect(runs)


def peak(name: str, labels: Sequence[str], at: str) -> SeedEffect:
    """By how much the value at one label exceeds the largest of the others."""
    _check_several(labels, f"peak('{name}')")
    if at not in labels:
        raise unknown("label", at, labels)
    return lambda runs: runs[at][name] - largest(runs[label][name] for label in labels if label != at)


def range_of(name: str, labels: Sequence[str]) -> SeedEffect:
    """Largest minus smallest."""
    _check_several(labels, f"range_of('{name}')")

    def effect(runs: Runs) -> float:
        values = [runs[label][name] for label in labels]
        return largest(values) - least(values)

    return effect


def curve_correlation(label: str, one: str, other: str) -> SeedEffect:
    """Spearman's ρ of two curves of one run, −1 to 1; "step" is the curve of the steps themselves."""

    def curve(run: Observed, name: str) -> np.ndarray:
        values = run.steps if name == "step" else run.curve(name) or (math.nan,) * len(run.steps)
        return np.array(values, dtype=np.float64)

    def effect(runs: Runs) -> float:
        curves = [curve(runs[label], name) for name in (one, other)]
        return float(ranks.rank_correlation(*curves)) if len(curves[0]) else math.nan

    return effect


def gap_at_equal_loss(larger: str, smaller: str, metric: str = SINK) -> SeedWise:
    """The difference of two runs' curves, each at the validation loss that the slower one ends with.

    An operation that learns slowly has a low sink rate at equal steps for that reason alone. Each value is the mean
    over the evaluation at which that loss is first reached and two on either side. `larger` is the control: NaN where
    its sink there is below half of its final one, when nothing could be missing yet; NaN as well where that is so of
    the other, if it ends with a sink. The sink is read from its mass where the curve is that, else from its rate.
    """
    _check_different((larger, smaller), f"gap_at_equal_loss('{metric}')")

    def effect(runs: Runs) -> float:
        control = _at_loss(runs, larger, smaller, metric, control=larger)
        return control - _at_loss(runs, smaller, larger, metric, control=larger)

    return SeedWise(effect, f"at equal loss the sink of '{larger}' or of '{smaller}' has not formed")


def log_ratio_at_equal_loss(larger: str, smaller: str, metric: str = NORM_RATIO) -> SeedWise:
    """The logarithm of the quotient of two curves, read in the same way; NaN where one is not positive."""
    _check_different((larger, smaller), f"log_ratio_at_equal_loss('{metric}')")

    def effect(runs: Runs) -> float:
        over = _at_loss(runs, larger, smaller, metric, control=larger)
        under = _at_loss(runs, smaller, larger, metric, control=larger)
        return math.log(over / under) if over > 0 and under > 0 else math.nan

    return SeedWise(effect, f"at equal loss the sink of '{larger}' or of '{smaller}' has not formed")


def around_loss(run: Observed, loss: float, metric: str) -> float:
    """A curve's mean over the evaluation at which the validation loss is first `loss` or less, and two on either side.

    Evaluations at which the curve is unknown are left out; NaN where the loss is never reached.
    """
    losses, values = run.curves.get(LOSS, ()), run.curves.get(metric, ())
    reached = next((place for place, value in enumerate(losses) if value <= loss), None)
    if reached is None:
        return math.nan
    near = [value for value in values[max(0, reached - AROUND) : reached + AROUND + 1] if not math.isnan(value)]
    return math.fsum(near) / len(near) if near else math.nan


def _at_loss(runs: Runs, label: str, other: str, metric: str, control: str) -> float:
    finals = (runs[label]["loss"], runs[other]["loss"])
    if any(map(math.isnan, finals)):
        return math.nan
    loss, sink = max(finals), MASS if metric == MASS else SINK
    value = around_loss(runs[label], loss, metric)
    formed = [_formed(runs[each], loss, sink, each == control) for each in (label, other)]
    return value if all(formed) else math.nan


def _formed(run: Observed, loss: float, sink: str, is_control: bool) -> bool:
    # Asked so that a comparison with an unknown value, which is false, never says "formed".
    final = last(run, sink)
    return around_loss(run, loss, sink) >= FORMED * final or (not is_control and final < FINAL[sink])


# Points of a curve.


def last(run: Observed, name: str, share: float = 1.0) -> float:
    """A curve's last known value in the first `share` of the steps (0 to 1); NaN where there is none."""
    known = [value for step, value in _known(run, name) if step <= share * run.steps[-1]]
    return known[-1] if known else math.nan


def half_way(run: Observed, name: str) -> float:
    """The share of the steps after which a curve is for the first time half way from its first to its last value.

    NaN for a curve of fewer than two values, and for one that ends where it began.
    """
    known = _known(run, name)
    if len(known) < 2 or known[0][1] == known[-1][1]:
        return math.nan
    (_, first), (end, final) = known[0], known[-1]
    return next(step for step, value in known if (value - first) / (final - first) >= 0.5) / end


def onset(run: Observed, name: str, level: float) -> float:
    """The share of the steps after which a curve first reaches a level; 1 where it never does.

    NaN without the curve.
    """
    known = _known(run, name)
    return next((step for step, value in known if value >= level), known[-1][0]) / known[-1][0] if known else math.nan


def least(values: Iterable[float]) -> float:
    """The smallest; NaN where one is unknown. Python's min and max skip a NaN or not, depending on its place."""
    known = list(values)
    return math.nan if any(map(math.isnan, known)) else min(known)


def largest(values: Iterable[float]) -> float:
    """The largest; NaN where one is unknown."""
    known = list(values)
    return math.nan if any(map(math.isnan, known)) else max(known)


def _known(run: Observed, name: str) -> list[tuple[int, float]]:
    values = zip(run.steps, run.curve(name), strict=False)
    return [(step, value) for step, value in values if not math.isnan(value)]
