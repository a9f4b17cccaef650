"""Effects that are sums of means: each run may have seeds of its own, and an interval is Welch's.

A difference of two runs does not need runs that share a seed: the seed says how they start, and other variations start
otherwise. So a control counts with all its seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from sinkscope.errors import InputError
from sinkscope.experiments.observed import Observed, on_few_tokens
from sinkscope.experiments.question import Runs
from sinkscope.measurement.metrics import FEWEST
from sinkscope.statistics.estimates import Estimate, estimate

Read = Callable[[Observed], float]


@dataclass(frozen=True)
class Term:
    """A number of one variation's runs, and how much it counts."""

    label: str
    weight: float
    read: Read


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

    def of(self, label: str, run: Observed) -> float:
        """What one run contributes: terms of one variation are made within its runs."""
        return math.fsum(term.weight * term.read(run) for term in self.terms if term.label == label)

    def over(self, runs: Mapping[str, Sequence[Observed]]) -> Estimate:
        """The effect over all runs of each variation; NaN where one of them has no value."""
        found = estimate([(1.0, [self.of(label, run) for run in runs[label]]) for label in self.labels])
        return Estimate(found.mean + self.constant, found.error, found.df, found.n)


def metric(name: str) -> Read:
    """A metric of a run. Raises `InputError` for a rate on fewer than 32 tokens, which says nothing."""
    if on_few_tokens(name):
        raise InputError(f"'{name}': no sink rate is read on fewer than {FEWEST} tokens, nearest: tokens={FEWEST}")
    return lambda run: run[name]


def log_metric(name: str) -> Read:
    """Its natural logarithm; NaN where it is not positive."""

    def read(run: Observed) -> float:
        value = run[name]
        return math.log(value) if value > 0 else math.nan

    return read


def gap(name: str, larger: str, smaller: str) -> Contrast:
    """metric(larger) − metric(smaller)."""
    return Contrast((Term(larger, 1.0, metric(name)), Term(smaller, -1.0, metric(name))))


def log_ratio(name: str, larger: str, smaller: str) -> Contrast:
    """log(metric(larger) / metric(smaller)): for norms and kurtoses, which differ by factors."""
    return Contrast((Term(larger, 1.0, log_metric(name)), Term(smaller, -1.0, log_metric(name))))


def level(name: str, label: str) -> Contrast:
    """The metric itself."""
    return Contrast((Term(label, 1.0, metric(name)),))


def off(name: str, label: str, expected: float) -> Contrast:
    """metric − expected."""
    return Contrast((Term(label, 1.0, metric(name)),), -expected)


def metric_gap(label: str, larger: str, smaller: str) -> Contrast:
    """Two metrics of one run: larger − smaller."""
    return Contrast((Term(label, 1.0, metric(larger)), Term(label, -1.0, metric(smaller))))


def log_quotient(label: str, over: str, under: str) -> Contrast:
    """log(over / under) of two metrics of one run."""
    return Contrast((Term(label, 1.0, log_metric(over)), Term(label, -1.0, log_metric(under))))


def ahead_of(label: str, metrics: Sequence[str], behind: str) -> Contrast:
    """The mean of some metrics of one run minus another of its metrics."""
    weight = 1 / len(metrics)
    return Contrast((*(Term(label, weight, metric(name)) for name in metrics), Term(label, -1.0, metric(behind))))


def rising(name: str, labels: Sequence[str]) -> Contrast:
    """How much a series rises from its first label to its last, along the line fitted by least squares to their order.

    b (k − 1) with b = Σ (i − ī) x_i / Σ (i − ī)²; of two labels their difference. The middle of an odd number has no
    weight, but is asked for all the same: without its runs nobody knows a series.
    """
    middle, last = (len(labels) - 1) / 2, len(labels) - 1
    scale = last / math.fsum((place - middle) ** 2 for place in range(len(labels)))
    weights = [(place - middle) * scale for place in range(len(labels))]
    return Contrast(tuple(Term(label, w, metric(name)) for label, w in zip(labels, weights, strict=True)))
