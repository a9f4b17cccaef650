"""How often the rules call something true that is not, and how much more they see with more seeds: simulated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.special import stdtr

from sinkscope.statistics.estimates import Estimate
from sinkscope.statistics.rules import Above, Below, Within

TRIALS = 40_000
COMPARED = 100
ERRS = 0.06  # where 5 % are meant: Welch's interval is no exact one
CHANCE = 3 * (ERRS * (1 - ERRS) / TRIALS) ** 0.5  # by which a share of so many trials may be off: three standard errors
SEEDS = (3, 5, 10)
Rule = Above | Below | Within


@dataclass(frozen=True)
class Trials:
    """Differences of means of many pairs of runs, with Welch's standard errors and degrees of freedom."""

    mean: np.ndarray
    error: np.ndarray
    df: np.ndarray
    n: tuple[int, int]

    def above(self, limit: float) -> np.ndarray:
        """p-values of "not above the limit"; 1 minus them are those of "not below"."""
        return stdtr(self.df, (limit - self.mean) / self.error)

    def __getitem__(self, trial: int) -> Estimate:
        return Estimate(float(self.mean[trial]), float(self.error[trial]), float(self.df[trial]), self.n)


def two_runs(effect: float, n: int, controls: int, spread: float = 1.0) -> Trials:
    """So many seeds of a treatment and of its control, with standard deviations of 1 and `spread`."""
    rng = np.random.default_rng([n, controls])
    one, other = rng.normal(effect, 1.0, (TRIALS, n)), rng.normal(0.0, spread, (TRIALS, controls))
    parts = [one.var(1, ddof=1) / n, other.var(1, ddof=1) / controls]
    df = sum(parts) ** 2 / (parts[0] ** 2 / (n - 1) + parts[1] ** 2 / (controls - 1))
    return Trials(one.mean(1) - other.mean(1), np.sqrt(sum(parts)), df, (n, controls))


def shares(rule: Rule, found: Trials) -> tuple[float, float]:
    """In which share of trials a rule holds, and in which it is refuted: by p-values, and the rule itself agrees."""
    if isinstance(rule, Above):
        p = found.above(rule.margin)
        holds, fails = p < 0.05, p >= 0.975
    elif isinstance(rule, Below):
        p = found.above(rule.limit)
        holds, fails = p > 0.95, p <= 0.025
    else:
        over, under = found.above(rule.tolerance), found.above(-rule.tolerance)
        holds, fails = (over >= 0.95) & (under <= 0.05), (over < 0.025) | (under > 0.975)
    outcomes = [rule.weigh(found[trial]).outcome for trial in range(COMPARED)]
    assert [outcome == "supported" for outcome in outcomes] == holds[:COMPARED].tolist()
    assert [outcome == "refuted" for outcome in outcomes] == fails[:COMPARED].tolist()
    return float(holds.mean()), float(fails.mean())


@pytest.mark.parametrize(("n", "controls"), [(3, 3), (3, 10), (5, 10)])
@pytest.mark.parametrize("spread", [0.5, 1.0, 3.0])
def test_an_effect_at_the_margin_is_rarely_called_larger_or_smaller(n: int, controls: int, spread: float) -> None:
    found = two_runs(2.0, n, controls, spread)
    for rule in (Above(2.0), Below(2.0), Within(2.0)):
        holds, fails = shares(rule, found)
        assert holds <= ERRS + CHANCE, rule
        assert fails <= 0.04 + CHANCE, rule  # 2.5 % are meant, by the two-sided interval


@pytest.mark.parametrize(("rule", "effect"), [(Above(2.0), 3.3), (Below(2.0), 0.7), (Within(2.0), 0.0)])
def test_more_seeds_see_more(rule: Rule, effect: float) -> None:
    power = [shares(rule, two_runs(effect, n, n))[0] for n in SEEDS]
    assert power == sorted(power)
    assert power[-1] > power[0] + 0.3
    shared = [shares(rule, two_runs(effect, 3, controls))[0] for controls in SEEDS]
    assert shared == sorted(shared), "a control that others share may have more seeds than a treatment"


def test_all_seeds_beyond_the_margin_erred_in_one_of_eight_and_saw_less_with_more_seeds() -> None:
    """The rule of before, for comparison."""
    rng = np.random.default_rng(0)
    beyond = {
        (effect, n): (rng.normal(effect, 1.0, (TRIALS, n)) > 2.0).all(1).mean() for effect in (2.0, 2.8) for n in (3, 8)
    }
    assert beyond[2.0, 3] == pytest.approx(1 / 8, abs=0.005)
    assert beyond[2.8, 8] < beyond[2.8, 3] - 0.2


def test_two_seeds_decide_nothing_however_far_they_are() -> None:
    found = two_runs(50.0, 2, 10)
    assert {Above(2.0).weigh(found[trial]).kind for trial in range(COMPARED)} == {"too few seeds"}
