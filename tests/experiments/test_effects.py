"""Numbers that decide claims, on runs whose answer is known."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from sinkscope.errors import InputError
from sinkscope.experiments import (
    Has,
    Observed,
    Shares,
    gap,
    gap_at_equal_loss,
    level,
    log_level,
    log_ratio,
    log_ratio_at_equal_loss,
    peak,
    range_of,
    rising,
)
from sinkscope.experiments.effects import (
    MASS,
    NORM_RATIO,
    SINK,
    around_loss,
    curve_correlation,
    half_way,
    largest,
    last,
    least,
    log_quotient,
    metric_gap,
    onset,
)


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
        (log_ratio("m", "b", "a"), math.log(4.0)),
        (metric_gap("two", "m", "n"), 6.0),
        (log_level("m", "b"), math.log(4.0)),
        (Shares((("b",), ("a",)), Has("m", 3.0)), 1.0),
        (Shares((("b",), ("a", "c")), Has("m", 3.0)), 0.5),
        (Shares((("a",),), Has("m", 3.0)), 0.0),
        (Shares((("gone",),), Has("m", 3.0, diverged=True)), 1.0),
        (lambda runs: largest(runs["two"][name] for name in "nmo"), 8.0),
        (lambda runs: least(runs["two"][name] for name in "mno"), 2.0),
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
        rising("m", ("a", "gone", "b")),
        log_ratio("m", "a", "gone"),
        Shares((("a", "gone"),), Has("m", 3.0)),
        lambda runs: largest(runs["two"][name] for name in ("m", "missing")),
        lambda runs: least(runs["two"][name] for name in ("missing", "m")),
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


LOSSES = (8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0)
FAST = straight(LOSSES, (0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 10.0))
SLOW = straight((8.0, 7.5, 7.0, 6.5, 6.0, 5.5, 5.0), (0.0, 0.0, 1.0, 1.0, 1.0, 4.0, 4.0))


def test_at_equal_loss_a_slow_learner_is_compared_with_an_early_state():
    """The fast run is near 6 % when its loss is what the slow one ends with, not at its final 10 %."""
    runs = {"fast": FAST, "slow": SLOW}
    assert gap("loss", "slow", "fast")(runs) == 3.0
    assert gap_at_equal_loss("fast", "slow")(runs) == pytest.approx(6.0 - (1 + 4 + 4) / 3)


def test_at_equal_loss_nothing_is_said_where_the_control_has_no_sink_yet():
    late = straight((8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0), (0.0, 0.0, 0.0, 0.0, 1.0, 10.0, 10.0))
    assert math.isnan(gap_at_equal_loss("late", "slow")({"late": late, "slow": SLOW}))


def test_at_equal_loss_nothing_is_said_where_the_other_has_a_sink_later_either():
    """A fast learner is read before it ends: it would seem to have no sink. One that never has any is compared."""
    losses = (8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0)
    late, never = (straight(losses, (0.0, 0.0, 0.0, 0.0, 1.0, last, last)) for last in (10.0, 2.5))
    claim = gap_at_equal_loss("slow", "late")
    assert math.isnan(claim({"late": late, "slow": SLOW}))
    assert "'slow' or of 'late'" in claim.refusal
    assert not math.isnan(claim({"late": never, "slow": SLOW}))


@pytest.mark.parametrize("control", [True, False])
@pytest.mark.parametrize("rates", [(math.nan,) * 7, (*(math.nan,) * 6, 10.0)], ids=["unknown", "unknown there"])
def test_at_equal_loss_an_unknown_sink_has_not_formed(rates, control):
    """Although the norms that are compared are known."""
    ratios = {NORM_RATIO: (2.0,) * 7}
    known, unknown = (replace(run, curves=run.curves | ratios) for run in (FAST, straight(LOSSES, rates)))
    runs = {"known": known, "unknown": unknown, "slow": replace(SLOW, curves=SLOW.curves | ratios)}
    assert log_ratio_at_equal_loss("known", "slow")(runs) == 0.0
    labels = ("unknown", "slow") if control else ("slow", "unknown")
    assert math.isnan(log_ratio_at_equal_loss(*labels)(runs))


def test_a_difference_of_contrasts_is_that_of_their_values():
    runs = {"a": seen(5.0, ()), "b": seen(3.0, ())}
    both = replace(level("m", "a"), constant=-1.0) - replace(level("m", "b"), constant=-2.0)
    assert both(runs) == (5 - 1) - (3 - 2)
    assert both.over({name: [run, run] for name, run in runs.items()}).mean == 3.0
    assert (both - both)(runs) == 0.0


def test_masses_are_compared_where_the_control_s_mass_has_formed():
    steps, losses = (1, 2, 3, 4, 5, 6, 7), (7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0)

    def one(last_loss: float, masses: tuple[float, ...]) -> Observed:
        curves = {"validation_loss": tuple(max(loss, last_loss) for loss in losses), MASS: masses, SINK: (0.0,) * 7}
        return Observed("r", "finished", 0, {"loss": max(last_loss, 1.0)}, steps, curves)

    formed, late = (0.0, 2.0, 4.0, 4.0, 4.0, 4.0, 4.0), (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 4.0)
    slow = one(4.0, (0.0,) * 7)
    assert gap_at_equal_loss("a", "slow", MASS)({"a": one(1.0, formed), "slow": slow}) == pytest.approx(18 / 5)
    assert math.isnan(gap_at_equal_loss("a", "slow", MASS)({"a": one(1.0, late), "slow": slow}))


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


def test_an_onset_is_the_first_time_at_a_level_and_the_end_where_that_never_comes():
    run = Observed("r", "finished", 0, {}, (100, 200, 300, 400), {SINK: (0.0, math.nan, 1.0, 0.5)})
    assert onset(run, SINK, 1.0) == 0.75
    assert onset(run, SINK, 2.0) == 1.0
    assert math.isnan(onset(run, MASS, 1.0))


HEADS = {
    "alpha": ((0.1, 0.2), (0.3, math.nan)),
    "value_norm": ((1.0, 1.0), (1.0, 5.0)),
    "value_norm/others": ((1.0, 1.0), (4.0, 5.0)),
    "cosine": ((0.0, 0.0), (0.75, 0.0)),
    "cosine/others": ((0.0, 0.0), (0.25, 0.0)),
    "prefix_matching": ((0.1, 0.4), (math.nan, 0.7)),
}


def test_the_head_with_the_strongest_sink_is_read_at_the_end():
    run = Observed("r", "finished", 0, {}, (1, 2), heads=HEADS)
    assert run["top_head/alpha"] == 0.3
    assert run["top_head/value_ratio"] == 0.25
    assert run["top_head/cosine_gap"] == 0.5
    assert math.isnan(run["top_head/key_ratio"])
    assert math.isnan(Observed("r", "finished", 0)["top_head/alpha"])
    assert run.curve("largest/prefix_matching") == (0.4, 0.7)
    assert Observed("r", "finished", 0, {}, (1, 2)).curve("largest/prefix_matching") == ()


def test_heads_go_round_a_record_and_old_records_have_none():
    run = Observed("r", "finished", 0, {"m": 1.0}, (1, 2), heads=HEADS)
    plain = json.loads(json.dumps(run.to_dict(), allow_nan=False))
    again = Observed.from_dict(plain)
    assert repr(again.heads) == repr(run.heads)  # NaN is not equal to itself
    del plain["heads"]
    assert Observed.from_dict(plain).heads == {}
    with pytest.raises(InputError, match="not a record of an observed run"):
        Observed.from_dict({**plain, "heads": {"alpha": ["0.1 many"]}})


@pytest.mark.parametrize("metric", ["sink_0/tokens=16", "sink_0/tokens=31/epsilon=0.2"])
def test_a_rate_on_few_tokens_is_refused_and_unknown(metric):
    """Also one that a record of before holds."""
    with pytest.raises(InputError, match="fewer than 32 tokens, nearest: tokens=32"):
        gap(metric, "a", "b")
    assert math.isnan(Observed("r", "finished", 0, {metric: 30.0})[metric])
    assert Observed("r", "finished", 0, {"sink_0/tokens=32": 30.0})["sink_0/tokens=32"] == 30.0


def test_a_quotient_of_two_metrics():
    run = Observed("r", "finished", 0, {"m": 8.0, "n": 2.0, "o": 3.0, "none": 0.0})
    assert log_quotient("r", "m", "n")({"r": run}) == pytest.approx(math.log(4))
    assert math.isnan(log_quotient("r", "m", "none")({"r": run}))


@pytest.mark.parametrize(
    ("has", "value", "answer"),
    [
        (Has("m", 2.0), 2.0, True),
        (Has("m", 2.0), 1.9, False),
        (Has("m", at_most=2.0), 2.1, False),
        (Has("m", 1.5, 2.5), 2.0, True),
        (Has("m", 1.5, 2.5), 2.6, False),
        (Has("m", 1.0, minus="n"), 2.4, False),
        (Has("m", 0.5, minus="n"), 2.4, True),
        (Has("other", 1.0), 2.0, None),
        (Has("m", 1.0, minus="other"), 2.0, None),
    ],
    ids=str,
)
def test_whether_a_model_has_something(has, value, answer):
    assert has(Observed("r", "finished", 0, {"m": value, "n": 1.5})) is answer
    assert has(Observed("r", "diverged", 0)) is None


def test_norms_are_compared_at_equal_loss_as_ratios():
    runs = {"fast": FAST, "slow": SLOW}
    ratio = log_ratio_at_equal_loss("fast", "slow", SINK)(runs)
    assert ratio == pytest.approx(math.log(6.0 / 3.0))
