"""Numbers that decide claims, on runs whose answer is known."""

from __future__ import annotations

import math

import pytest

from sinkscope.experiments import (
    Observed,
    diverges,
    gap,
    gap_at_equal_loss,
    level,
    log_ratio,
    peak,
    range_of,
    rising,
)
from sinkscope.experiments.assertions import all_keep_sink
from sinkscope.experiments.effects import (
    SINK,
    at_equal_loss,
    curve_correlation,
    fails,
    half_way,
    largest,
    largest_of,
    last,
    least,
    least_of,
    maximum_at,
    metric_gap,
    off,
    quotient,
    rank_correlation,
)
from sinkscope.experiments.equal_loss import around_loss


def seen(value: float, curve: tuple[tuple[float, float], ...] = (), status: str = "finished") -> Observed:
    """A run with one metric, and (loss, sink rate) at its evaluations."""
    curves = {"validation_loss": tuple(a for a, _ in curve), "sink/position_0": tuple(b for _, b in curve)}
    metrics = {"m": value} | ({"loss": curve[-1][0]} if curve else {})
    return Observed("r", status, 0, metrics if status == "finished" else {}, tuple(range(len(curve))), curves)


RUNS = {
    **{label: seen(value) for label, value in (("a", 1.0), ("b", 4.0), ("c", 6.0), ("d", 4.0))},
    "gone": seen(0.0, status="diverged"),
    "two": Observed("r", "finished", 0, {"m": 8.0, "n": 2.0, "o": 3.0}),
}


@pytest.mark.parametrize(
    ("effect", "expected"),
    [
        (gap("m", "b", "a"), 3.0),
        (level("m", "c"), 6.0),
        (rising("m", "ab"), 3.0),
        (rising("m", "abc"), 5.0),
        (rising("m", "cba"), -5.0),
        (rising("m", "bac"), 2.0),
        (peak("m", "abc", at="c"), 2.0),
        (peak("m", "abc", at="a"), -5.0),
        (range_of("m", "abc"), 5.0),
        (peak("m", "abc", at="b"), -2.0),
        (maximum_at("m", "abc", at="c"), 1.0),
        (maximum_at("m", "abc", at="b"), 0.0),
        (maximum_at("m", "bd", at="b"), 0.0),
        (rank_correlation("m", "abc"), 1.0),
        (rank_correlation("m", "cba"), -1.0),
        (rank_correlation("m", "acb"), 0.5),
        (least_of("m", "cab"), 1.0),
        (largest_of("m", "acb"), 6.0),
        (log_ratio("m", "b", "a"), math.log(4.0)),
        (off("m", "b", 5.0), -1.0),
        (metric_gap("two", "m", "n"), 6.0),
        (quotient("two", "m", "n"), 4.0),
        (lambda runs: largest(runs["two"][name] for name in "nmo"), 8.0),
        (lambda runs: least(runs["two"][name] for name in "mno"), 2.0),
        (fails("gone", "a", 1.0), 1.0),
        (diverges("gone"), 1.0),
        (diverges("a"), 0.0),
    ],
)
def test_effects(effect, expected):
    assert effect(RUNS) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    "effect",
    [
        gap("m", "gone", "a"),
        level("n", "a"),
        range_of("m", ("a", "gone")),
        rising("m", ("a", "b", "gone")),
        rising("m", ("gone", "a", "b")),
        peak("m", ("a", "b", "gone"), at="a"),
        maximum_at("m", ("a", "b", "gone"), at="gone"),
        rank_correlation("m", ("a", "b", "c", "gone")),
        least_of("m", ("a", "gone")),
        least_of("m", ("gone", "a")),
        largest_of("m", ("a", "gone")),
        rising("m", ("a", "gone", "b")),
        log_ratio("m", "a", "gone"),
        lambda runs: largest(runs["two"][name] for name in ("m", "missing")),
        lambda runs: least(runs["two"][name] for name in ("missing", "m")),
        quotient("two", "m", "missing"),
        fails("a", "gone", 1.0),
        at_equal_loss("gone", "a"),
        lambda runs: last(runs["gone"], SINK, 0.5),
        lambda runs: half_way(runs["gone"], SINK),
        curve_correlation("gone", SINK, "step"),
        curve_correlation("two", SINK, "missing"),
    ],
)
def test_what_is_missing_is_not_a_number(effect):
    assert math.isnan(effect(RUNS))


def test_a_curve_is_read_around_the_place_where_the_loss_first_arrives():
    losses, rates = (6.0, 5.0, 4.0, 3.0, 2.0, 2.5, 1.0), (0.0, 1.0, 2.0, math.nan, 6.0, 7.0, 9.0)
    run = seen(0.0, tuple(zip(losses, rates, strict=True)))
    assert around_loss(run, 3.0, SINK) == pytest.approx((1 + 2 + 6 + 7) / 4)
    assert around_loss(run, 3.5, SINK) == around_loss(run, 3.0, SINK)
    assert around_loss(run, 9.0, SINK) == pytest.approx((0 + 1 + 2) / 3)
    assert around_loss(run, 1.0, SINK) == pytest.approx((6 + 7 + 9) / 3)
    assert math.isnan(around_loss(run, 0.5, SINK))


def straight(losses, rates):
    return seen(0.0, tuple(zip(losses, rates, strict=True)))


FAST = straight((8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0), (0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 10.0))
SLOW = straight((8.0, 7.5, 7.0, 6.5, 6.0, 5.5, 5.0), (0.0, 0.0, 1.0, 1.0, 1.0, 4.0, 4.0))


def test_at_equal_loss_a_slow_learner_is_compared_with_an_early_state():
    """The fast run is near 6 % when its loss is what the slow one ends with, not at its final 10 %."""
    runs = {"fast": FAST, "slow": SLOW}
    assert gap("loss", "slow", "fast")(runs) == 3.0
    assert at_equal_loss("fast", "slow")(runs) == pytest.approx((2 + 4 + 6 + 8 + 10) / 5)
    assert gap_at_equal_loss("fast", "slow")(runs) == pytest.approx(6.0 - (1 + 4 + 4) / 3)


def test_at_equal_loss_nothing_is_said_where_the_control_has_no_sink_yet():
    late = straight((8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0), (0.0, 0.0, 0.0, 0.0, 1.0, 10.0, 10.0))
    assert math.isnan(gap_at_equal_loss("late", "slow")({"late": late, "slow": SLOW}))
    assert math.isnan(at_equal_loss("slow", "late")({"late": late, "slow": SLOW}))
    assert not math.isnan(gap_at_equal_loss("slow", "late")({"late": late, "slow": SLOW}))


def test_a_run_fails_that_diverges_or_ends_far_above_another():
    near, far = seen(0.0, ((3.5, 0.0),)), seen(0.0, ((4.5, 0.0),))
    runs = {"base": seen(0.0, ((3.0, 0.0),)), "near": near, "far": far}
    assert [fails(label, "base", 1.0)(runs) for label in ("near", "far", "base")] == [0.0, 1.0, 0.0]


def test_over_zero_there_is_no_quotient():
    assert math.isnan(
        quotient("run", "one", "other")({"run": Observed("r", "finished", 0, {"one": 1.0, "other": 0.0})})
    )


def test_a_claim_about_several_at_equal_loss_is_about_the_least():
    curves = {"a": (5.0, 5.0), "b": (3.0, 3.0), "base": (7.0, 7.0)}
    runs = {label: straight((4.0, 2.0), rates) for label, rates in curves.items()}
    assert at_equal_loss("a", "base")(runs) == 5.0
    assert all_keep_sink(("a", "b"), "base", "a test")[1].effect(runs) == 3.0


def test_curves_are_read_by_share_of_the_steps():
    losses, rates = (8.0, 4.0, 3.0, 2.0, 2.0), (0.0, 0.0, 1.0, 6.0, 10.0)
    curves = {"validation_loss": losses, SINK: rates}
    run = Observed("r", "finished", 0, {}, (100, 200, 300, 400, 500), curves)
    assert last(run, SINK) == 10.0
    assert last(run, SINK, 0.6) == 1.0
    assert last(run, SINK, 0.59) == 0.0
    assert math.isnan(last(run, SINK, 0.1))
    assert half_way(run, SINK) == 0.8
    assert half_way(run, "validation_loss") == 0.4
    runs = {"run": run}
    assert curve_correlation("run", SINK, "step")(runs) == pytest.approx(0.975, abs=1e-3)
    assert curve_correlation("run", "validation_loss", SINK)(runs) < -0.9


def test_unknown_values_of_a_curve_are_passed_over():
    run = Observed("r", "finished", 0, {}, (1, 2, 3, 4), {SINK: (math.nan, 2.0, 6.0, math.nan)})
    assert last(run, SINK) == 6.0
    assert half_way(run, SINK) == 1.0
    assert math.isnan(half_way(run, "missing"))


def test_half_way_is_the_half_itself():
    assert half_way(Observed("r", "finished", 0, {}, (1, 2, 4), {SINK: (0.0, 5.0, 10.0)}), SINK) == 0.5


def test_a_curve_that_goes_nowhere_is_nowhere_half_way():
    run = Observed("r", "finished", 0, {}, (1, 2), {SINK: (3.0, 3.0)})
    assert math.isnan(half_way(run, SINK))
