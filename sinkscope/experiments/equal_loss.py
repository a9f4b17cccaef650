"""Curves read where two runs have learned equally much.

An operation that learns slowly has a low sink rate at equal steps for that reason alone. So two runs are compared at
the validation loss that the slower one ends with.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sinkscope.experiments.observed import Observed
from sinkscope.experiments.question import Runs, SeedEffect

LOSS, SINK, MASS, NORM_RATIO = "validation_loss", "sink/position_0", "sink/mass", "sink/hidden_norm_ratio"
AROUND = 2  # evaluations on each side of the one at which the loss is reached
FORMED = 0.5  # of its final sink, a rate or a mass: below that a run's has not formed
FINAL = {MASS: 1.0, SINK: 3.0}  # percent: a run that ends with less has no sink that could form; the control must


@dataclass(frozen=True)
class SeedWise:
    """An effect made within a seed, and why it may have no value in one whose runs are whole.

    `refuses`: whether that is why it has none, which may also be that something was not measured.
    """

    effect: SeedEffect
    refusal: str
    refuses: Callable[[Runs], bool] = lambda _: True

    def __call__(self, runs: Runs) -> float:
        return self.effect(runs)


def at_equal_loss(label: str, beside: str, metric: str = SINK) -> SeedWise:
    """A run's curve where its validation loss is the larger of two runs' final ones; `beside` is the control."""
    return SeedWise(lambda runs: _reading(runs, label, beside, metric, control=beside), _refusal(beside, label))


def gap_at_equal_loss(larger: str, smaller: str, metric: str = SINK) -> SeedWise:
    """The difference of two runs' curves, each at the validation loss that the slower one ends with.

    Each is the mean over the evaluation at which that loss is first reached and two on either side. `larger` is the
    control: NaN where its sink there is below half of its final one, when nothing could be missing yet; NaN as well
    where that is so of the other, if it ends with a sink: it would seem to have none, or a weaker one, since it learns
    fast. The sink is told by its mass where the curve is that, else by its rate.
    """

    def effect(runs: Runs) -> float:
        control = _reading(runs, larger, smaller, metric, control=larger)
        return control - _reading(runs, smaller, larger, metric, control=larger)

    return SeedWise(effect, _refusal(larger, smaller))


def log_ratio_at_equal_loss(larger: str, smaller: str, metric: str = NORM_RATIO) -> SeedWise:
    """The logarithm of the quotient of two curves, read in the same way; NaN where one is not positive."""

    def effect(runs: Runs) -> float:
        above = _reading(runs, larger, smaller, metric, control=larger)
        under = _reading(runs, smaller, larger, metric, control=larger)
        return math.log(above / under) if above > 0 and under > 0 else math.nan

    return SeedWise(effect, _refusal(larger, smaller))


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


def _reading(runs: Runs, label: str, beside: str, metric: str, control: str) -> float:
    finals = (runs[label]["loss"], runs[beside]["loss"])
    if any(map(math.isnan, finals)):
        return math.nan
    loss, sink = max(finals), MASS if metric == MASS else SINK
    value = around_loss(runs[label], loss, metric)
    formed = [_formed(runs[each], loss, sink, each == control) for each in (label, beside)]
    return value if all(formed) else math.nan


def _formed(run: Observed, loss: float, sink: str, is_control: bool) -> bool:
    final = next((value for value in reversed(run.curves.get(sink, ())) if not math.isnan(value)), math.nan)
    return not around_loss(run, loss, sink) < FORMED * final or not (is_control or final >= FINAL[sink])


def _refusal(control: str, other: str) -> str:
    return f"at that loss the sink of '{control}' or of '{other}' is less than half of its final one"
