"""Numbers that decide claims, on runs whose answer is known."""

from __future__ import annotations

import math

import pytest

from sinkscope.experiments import (
    Observed,
    below,
    diverges,
    gap,
    gap_at_equal_loss,
    level,
    peak,
    range_of,
    rising,
)
from sinkscope.experiments.effects import when_loss_is


def seen(value: float, curve: tuple[tuple[float, float], ...] = (), status: str = "finished") -> Observed:
    """A run with one metric, and (loss, sink rate) at its evaluations."""
    curves = {"validation_loss": tuple(a for a, _ in curve), "sink/position_0": tuple(b for _, b in curve)}
    metrics = {"m": value} | ({"loss": curve[-1][0]} if curve else {})
    return Observed("r", status, 0, metrics if status == "finished" else {}, tuple(range(len(curve))), curves)


RUNS = {"a": seen(1.0), "b": seen(4.0), "c": seen(6.0), "gone": seen(0.0, status="diverged")}


@pytest.mark.parametrize(
    ("effect", "expected"),
    [
        (gap("m", "b", "a"), 3.0),
        (level("m", "c"), 6.0),
        (below("m", "c"), -6.0),
        (rising("m", "abc"), 2.0),
        (rising("m", "bac"), -3.0),
        (peak("m", "abc", at="c"), 2.0),
        (peak("m", "abc", at="a"), -5.0),
        (range_of("m", "abc"), 5.0),
        (diverges("gone"), 1.0),
        (diverges("a"), 0.0),
    ],
)
def test_effects(effect, expected):
    assert effect(RUNS) == expected


@pytest.mark.parametrize("effect", [gap("m", "gone", "a"), level("n", "a"), range_of("m", ("a", "gone"))])
def test_what_is_missing_is_not_a_number(effect):
    assert math.isnan(effect(RUNS))


def test_a_curve_is_read_where_the_loss_first_arrives():
    run = seen(0.0, ((4.0, 0.0), (3.0, 2.0), (2.0, 10.0), (2.5, 99.0)))
    assert when_loss_is(run, 3.0, "sink/position_0") == 2.0
    assert when_loss_is(run, 2.25, "sink/position_0") == 8.0
    assert when_loss_is(run, 5.0, "sink/position_0") == 0.0
    assert math.isnan(when_loss_is(run, 1.0, "sink/position_0"))


def test_at_equal_loss_a_slow_learner_is_compared_with_an_early_state():
    """The fast run is at 8 % when its loss is what the slow one ends with, not at its final 20 %."""
    fast = seen(0.0, ((4.0, 0.0), (3.0, 8.0), (2.0, 20.0)))
    slow = seen(0.0, ((4.0, 0.0), (3.5, 1.0), (3.0, 6.0)))
    runs = {"fast": fast, "slow": slow}
    assert gap("loss", "slow", "fast")(runs) == 1.0
    assert gap_at_equal_loss("fast", "slow")(runs) == 2.0
