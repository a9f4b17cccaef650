"""Differences of runs that have seeds of their own, judged by Welch's interval; and how often the rule errs."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from sinkscope.experiments import (
    Assertion,
    Findings,
    Observed,
    Question,
    Variation,
    gap,
    level,
    log_ratio,
    rising,
    verdicts,
)
from sinkscope.experiments.contrasts import Contrast, off
from sinkscope.experiments.question import above
from sinkscope.statistics.claims import Above, Below, Claim, Within
from sinkscope.statistics.estimates import estimate

DRAWS, MARGIN, SPREAD = 3000, 3.0, 2.0


def seen(label: str, seed: int, value: float, status: str = "finished") -> Observed:
    return Observed(f"{label}-{seed}", status, seed, {"m": value} if status == "finished" else {})


ABOVE_ZERO = Above(0.0)


def judged(effect, rule=ABOVE_ZERO, **values):
    runs = {
        label: {
            seed: seen(label, seed, value)
            for seed, value in dict(each if isinstance(each, dict) else enumerate(each)).items()
        }
        for label, each in values.items()
    }
    asked = Question("q", "?", "t", tuple(map(Variation, "abc")), (Assertion(Claim("c", "s", "t", rule), effect),))
    return verdicts(asked, Findings("q", "nano", 20, runs))[0]


def test_welch_s_example():
    """Ten and ten values, worked by hand in textbooks' formulas."""
    a, b = (
        [27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6],
        [27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0],
    )
    found = estimate([(1.0, a), (-1.0, b)])
    va, vb = statistics.variance(a) / len(a), statistics.variance(b) / len(b)
    assert found.mean == pytest.approx(statistics.mean(a) - statistics.mean(b))
    assert found.error == pytest.approx(math.sqrt(va + vb))
    assert found.df == pytest.approx((va + vb) ** 2 / (va**2 / 9 + vb**2 / 7))
    assert found.n == (10, 8)


def test_a_control_counts_with_all_its_seeds():
    control = {seed: 10.0 + (-1) ** seed for seed in range(10)}
    verdict = judged(gap("m", "a", "b"), Above(3.0), a=control, b=[1.0, 2.0, 3.0])
    assert verdict.n == (10, 3)
    assert [evidence.case for evidence in verdict.evidence] == ["seed 0", "seed 1", "seed 2"]
    few = judged(gap("m", "a", "b"), Above(3.0), a={seed: control[seed] for seed in range(3)}, b=[1.0, 2.0, 3.0])
    assert verdict.interval[1] - verdict.interval[0] < few.interval[1] - few.interval[0]


def test_a_constant_is_part_of_an_effect():
    """How far a number is from the one that is expected, over the runs as in each seed."""
    verdict = judged(off("m", "a", 2.0), Within(0.5), a=[2.0, 2.1, 1.9])
    assert (verdict.outcome, verdict.residual) == ("supported", pytest.approx(0.0))
    assert [evidence.value for evidence in verdict.evidence] == pytest.approx([0.0, 0.1, -0.1])
    assert judged(off("m", "a", 0.0), Within(0.5), a=[2.0, 2.1, 1.9]).kind == "different"


def test_runs_need_not_share_their_seeds():
    verdict = judged(gap("m", "a", "b"), Above(3.0), a={7: 9.0, 8: 9.1, 9: 9.2}, b=[1.0, 1.1, 1.2])
    assert (verdict.outcome, verdict.n, verdict.evidence) == ("supported", (3, 3), ())
    assert judged(gap("m", "a", "b"), a={7: 9.0}, b=[1.0, 1.1, 1.2]).kind == "too few seeds"
    assert judged(gap("m", "a", "b"), a=[1.0, 2.0, 3.0]).reason == "no run of 'b'"


def test_what_has_no_run_is_named_and_not_what_others_lack():
    asked = Question("q", "?", "t", tuple(map(Variation, "ab")), (above(0.0, gap("m", "a", "b"), "c", "s", "t", 3),))
    runs = {"a": {seed: seen("a", seed, 1.0) for seed in range(6)}, "b": {}}
    assert verdicts(asked, Findings("q", "nano", 6, runs))[0].reason == "no run of 'b'"
    runs["b"] = {0: seen("b", 0, 1.0)}
    assert "seed 0 of 'b'" in verdicts(asked, Findings("q", "nano", 6, runs))[0].reason


def test_a_run_that_diverged_leaves_it_undecided_and_one_that_lacks_the_metric_is_left_out():
    effect, rule = gap("m", "a", "b"), Above(0.0)
    asked = Question("q", "?", "t", tuple(map(Variation, "ab")), (Assertion(Claim("c", "s", "t", rule), effect),))
    runs = {label: {seed: seen(label, seed, 5.0 * (label == "a") + seed / 10) for seed in range(4)} for label in "ab"}
    assert verdicts(asked, Findings("q", "nano", 4, runs))[0].outcome == "supported"
    runs["a"][3] = Observed("old", "finished", 3, {})
    (old,) = verdicts(asked, Findings("q", "nano", 4, runs))
    assert (old.outcome, old.n, old.reason) == ("supported", (3, 4), "seed 3 left out: not measured in 'a'")
    runs["a"][3] = seen("a", 3, 0.0, "diverged")
    (gone,) = verdicts(asked, Findings("q", "nano", 4, runs))
    assert (gone.outcome, gone.reason) == ("inconclusive", "seed 3 undecided: 'a' diverged")


def test_a_series_is_judged_by_the_line_through_it():
    up = {"a": [1.0, 1.1, 0.9], "b": [3.0, 3.1, 2.9], "c": [2.5, 2.6, 2.4]}  # its last step falls
    verdict = judged(rising("m", "abc"), Above(1.0), **up)
    assert verdict.residual == pytest.approx(1.5)
    assert verdict.outcome == "supported"
    assert judged(rising("m", "abc"), Above(1.0), a=up["a"], c=up["c"]).reason == "no run of 'b'"


def test_norms_are_compared_as_ratios():
    verdict = judged(log_ratio("m", "a", "b"), Above(1.25, ratio=True), a=[8.0, 10.0, 12.0], b=[4.0, 5.0, 6.0])
    assert math.exp(verdict.residual) == pytest.approx(2.0)
    assert judged(log_ratio("m", "a", "b"), a=[8.0, 9.0, 10.0], b=[0.0, 1.0, 1.0]).reason.startswith("seed 0 left out")


def draws(effect: float, seeds: tuple[int, ...], count: int = DRAWS):
    """Estimates of an effect: of one sample its mean, of two their difference."""
    draw = random.Random(len(seeds) + sum(seeds))
    for _ in range(count):
        samples = [[draw.gauss(effect * (place == 0), SPREAD) for _ in range(n)] for place, n in enumerate(seeds)]
        yield estimate((1.0 if place == 0 else -1.0, values) for place, values in enumerate(samples))


def power(effect: float, seeds: tuple[int, ...]) -> float:
    """How often `Above(MARGIN)` is supported: where its one-sided p-value is below 5 %."""
    return sum(found.above(MARGIN) < 0.05 for found in draws(effect, seeds)) / DRAWS


def equal(effect: float, seeds: tuple[int, ...]) -> float:
    """How often `Within(MARGIN)` is."""
    return sum(max(1 - e.above(MARGIN), e.above(-MARGIN)) < 0.05 for e in draws(effect, seeds)) / DRAWS


def test_bounds_and_p_values_decide_alike():
    for found in draws(MARGIN + 2, (4, 3), 60):
        assert (Above(MARGIN).weigh(found).outcome == "supported") == (found.above(MARGIN) < 0.05)
        assert (Below(MARGIN).weigh(found).outcome == "supported") == (1 - found.above(MARGIN) < 0.05)
    for found in draws(0.0, (9, 8), 60):
        alike = max(1 - found.above(MARGIN), found.above(-MARGIN)) < 0.05
        assert (Within(MARGIN).weigh(found).outcome == "supported") == alike


@pytest.mark.parametrize("seeds", [(3,), (8,), (3, 3), (10, 3)])
def test_an_effect_as_large_as_the_margin_is_seldom_called_larger(seeds):
    """False support is at most 6 %, where "each of three seeds" had 12.5 %."""
    assert power(MARGIN, seeds) <= 0.06
    assert equal(MARGIN, seeds) <= 0.06


@pytest.mark.slow
def test_more_seeds_show_more():
    """Replication is rewarded: the power to show an effect beyond its margin rises with the seeds."""
    of_gaps, alike = [power(MARGIN + 3, (n, n)) for n in (3, 5, 8)], [equal(0.0, (n, n)) for n in (3, 5, 10)]
    for powers in (of_gaps, alike):
        assert powers == sorted(powers)
        assert powers[-1] > powers[0] + 0.3
    assert power(MARGIN + 3, (10, 3)) > power(MARGIN + 3, (3, 3))


def test_a_contrast_names_what_it_reads():
    assert isinstance(level("m", "a"), Contrast)
    assert rising("m", "abc").labels == ("a", "b", "c")
