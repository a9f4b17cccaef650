"""Made-up runs of a question in which its claims hold, or in which none does."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from sinkscope.statistics.rules import AGREEING

from sinkscope.experiments import Assertion, Observed, Question
from sinkscope.experiments.effects import LOSS, MASS, NORM_RATIO, SINK
from sinkscope.statistics.claims import Evidence, Outcome

STEPS = tuple(range(100, 1001, 100))
CURVES = {LOSS, SINK, MASS, NORM_RATIO}
LARGEST = {SINK: 60.0, MASS: 20.0}  # percent


class Noting(dict):
    """Metrics, or curves, that note which of them are asked for."""

    def __init__(self, known: dict) -> None:
        super().__init__(known)
        self.asked: set[str] = set()

    def get(self, name, default=None):
        self.asked.add(name)
        return super().get(name, default)


@dataclass
class Made:
    """A run in the making."""

    metrics: dict[str, float] = field(default_factory=dict)
    curves: dict[str, tuple[float, ...]] = field(default_factory=dict)
    diverged: bool = False

    def observed(self) -> Observed:
        if self.diverged:
            return Observed("made", "diverged", 0)
        loss = {"loss": self.curves[LOSS][-1]} if LOSS in self.curves else {}
        return Observed("made", "finished", 0, self.metrics | loss, STEPS, self.curves)


def reads(assertion: Assertion, question: Question) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Which metrics, and which curves, of which variation decide a claim."""
    runs = {
        variation.label: Observed("r", "finished", 0, Noting({}), STEPS, Noting({}))
        for variation in question.variations
    }
    for run in runs.values():
        run.metrics.update(loss=3.0)
        run.curves.update({name: tuple(map(float, range(len(STEPS)))) for name in CURVES})
    assertion.effect(runs)
    return (
        {label: run.metrics.asked for label, run in runs.items() if run.metrics.asked},
        {label: run.curves.asked for label, run in runs.items() if run.curves.asked},
    )


def outcome(assertion: Assertion, runs: dict[str, Observed]) -> Outcome:
    """The verdict where as many seeds as must agree all look like this."""
    value = assertion.effect(runs)
    return assertion.claim.judge([Evidence(f"seed {seed}", value) for seed in range(AGREEING)]).outcome


def runs_where(question: Question, assertions: tuple[Assertion, ...], wanted: Outcome, seed: int = 0):
    """Runs under which all of these claims have the wanted verdict, found by changing one number at a time.

    None where that leads nowhere.
    """
    draw = random.Random(seed)
    metrics: dict[str, set[str]] = {variation.label: set() for variation in question.variations}
    curves = {LOSS}
    for assertion in assertions:
        asked, drawn = reads(assertion, question)
        for label, names in asked.items():
            metrics[label] |= names
        curves = curves.union(*drawn.values())
    made = {
        label: Made({name: _value(draw, name) for name in sorted(names)}, _curves(draw, curves))
        for label, names in metrics.items()
    }

    def score() -> int:
        runs = {label: run.observed() for label, run in made.items()}
        return sum(outcome(assertion, runs) == wanted for assertion in assertions)

    best = score()
    for _ in range(6000):
        if best == len(assertions):
            return {label: run.observed() for label, run in made.items()}
        label = draw.choice(list(made))
        before = made[label]
        made[label] = _changed(draw, before, made)
        found = score()
        made[label] = made[label] if found >= best else before
        best = max(best, found)
    return None


def _changed(draw: random.Random, run: Made, others: dict[str, Made]) -> Made:
    choice = draw.random()
    if choice < (0.5 if run.diverged else 0.03):
        return Made(run.metrics, run.curves, not run.diverged)
    if choice < 0.4 or not run.metrics:
        alike = (
            draw.random() < 0.3
        )  # as another run's: many runs whose sinks have all formed are rarely drawn one by one
        curves = draw.choice(list(others.values())).curves if alike else _curves(draw, set(run.curves))
        return Made(run.metrics, curves, run.diverged)
    name = draw.choice(sorted(run.metrics))
    value = _value(draw, name)
    if draw.random() < 0.3:  # much as another run's
        value = draw.choice(list(others.values())).metrics.get(name, value) * draw.uniform(0.98, 1.02)
    return Made(run.metrics | {name: value}, run.curves, run.diverged)


def _value(draw: random.Random, name: str) -> float:
    if name.endswith("position"):
        return float(draw.randrange(8))
    return draw.choice([0.0, 1.0, 1.0, 1.0, 1.0]) * math.exp(draw.uniform(-5.0, 5.0))


def _curves(draw: random.Random, names: set[str]) -> dict[str, tuple[float, ...]]:
    start, end, middle = 7.0, draw.choice([draw.uniform(1.0, 6.5), draw.uniform(0.0, 0.1)]), draw.uniform(0.0, 1.0)
    loss = tuple(end + (start - end) * (1 - step / STEPS[-1]) ** (1 + 9 * middle) for step in STEPS)
    return {name: loss if name == LOSS else _ramp(draw, LARGEST.get(name, 8.0)) for name in sorted(names)}


def _ramp(draw: random.Random, largest: float) -> tuple[float, ...]:
    onset = draw.uniform(0.0, 1.2)
    first, last = (draw.choice([0.0, 0.5, draw.uniform(0.0, largest)]) for _ in range(2))
    return tuple(first + (last - first) / (1 + math.exp(-12 * (step / STEPS[-1] - onset))) for step in STEPS)
