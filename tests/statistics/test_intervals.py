"""Intervals over texts: against scipy, against simulated coverage, and where there is little to say."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from sinkscope.errors import InputError
from sinkscope.statistics import (
    FEW,
    difference_interval,
    mean_bounds,
    mean_interval,
    note,
    ratio_interval,
    share_bounds,
    share_interval,
)

DRAWS = 4000
ROOM = 0.02  # of coverage, six standard errors of 4,000 draws


def covered(draws: np.ndarray, truth: float) -> float:
    """How often the interval of (text, draw) holds the truth."""
    low, high = mean_bounds(draws)
    return float(((low <= truth) & (truth <= high)).mean())


@pytest.mark.parametrize("n", [2, 3, 8, 41])
def test_the_interval_of_a_mean_is_scipys(n: int) -> None:
    values = np.random.default_rng(n).normal(3, 2, n)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.9)
    found = mean_interval(values, 0.9)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.value == pytest.approx(values.mean())


@pytest.mark.parametrize(("n", "m"), [(2, 3), (8, 8), (20, 5)])
def test_the_difference_of_independent_samples_is_welchs(n: int, m: int) -> None:
    rng = np.random.default_rng(n)
    first, second = rng.normal(0, 1, n), rng.normal(1, 3, m)
    expected = stats.ttest_ind(second, first, equal_var=False).confidence_interval(0.95)
    found = difference_interval(first, second)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize("n", [4, 8, 16])
def test_normal_data_are_covered_as_stated(n: int) -> None:
    draws = np.random.default_rng(0).normal(0.3, 1, (n, DRAWS))
    assert covered(draws, 0.3) == pytest.approx(0.95, abs=ROOM)


@pytest.mark.parametrize(("n", "stated"), [(4, 0.88), (8, 0.89), (16, 0.91)])
def test_skewed_data_are_covered_less_as_the_docstring_states(n: int, stated: float) -> None:
    draws = np.random.default_rng(1).exponential(1, (n, DRAWS))
    assert covered(draws, 1.0) == pytest.approx(stated, abs=ROOM)


@pytest.mark.parametrize("mean", [0.03, 0.5, 0.9])
def test_shares_are_covered_and_stay_within_their_range(mean: float) -> None:
    draws = np.random.default_rng(2).binomial(200, mean, (12, DRAWS)) / 200
    low, high = share_bounds(draws)
    assert float(low.min()) >= 0
    assert float(high.max()) <= 1
    assert float(((low <= mean) & (mean <= high)).mean()) == pytest.approx(0.95, abs=ROOM)


def test_a_share_near_its_end_has_no_bound_beyond_it_where_plain_t_has() -> None:
    values = [1.0] * 7 + [0.6]
    assert mean_interval(values).high > 1
    found = share_interval(values)
    assert found.low < found.value < found.high < 1


def test_texts_that_agree_have_their_value_as_both_ends() -> None:
    assert share_interval([0.25] * 5).low == share_interval([0.25] * 5).high == 0.25
    assert mean_interval([0.1] * 3).low == mean_interval([0.1] * 3).high == pytest.approx(0.1)


def test_one_text_has_no_interval_and_what_was_not_measured_counts_nowhere() -> None:
    alone = mean_interval([2.0])
    assert alone.value == 2.0
    assert np.isnan([alone.low, alone.high]).all()
    with_gap, without = mean_interval([1.0, np.nan, 2.0, 4.0]), mean_interval([1.0, 2.0, 4.0])
    assert (with_gap.low, with_gap.high) == pytest.approx((without.low, without.high))


def test_columns_are_bounded_one_by_one() -> None:
    values = np.random.default_rng(3).normal(size=(6, 2, 3))
    values[0, 1, 2] = np.nan
    low, high = mean_bounds(values)
    for place in np.ndindex(2, 3):
        own = mean_interval(values[:, *place])
        assert (low[place], high[place]) == pytest.approx((own.low, own.high))


@pytest.mark.parametrize("n", [8, 30])
def test_a_ratio_is_covered_as_stated(n: int) -> None:
    rng = np.random.default_rng(4)
    inside = 0
    for _ in range(1500):
        size = rng.normal(2, 0.3, n)
        found = ratio_interval(0.7 * size + rng.normal(0, 0.2, n), size)
        inside += found.low <= 0.7 <= found.high
    assert inside / 1500 == pytest.approx(0.95, abs=0.025)


def test_a_ratio_of_exact_multiples_has_no_width() -> None:
    size = np.array([1.0, 2.0, 5.0])
    found = ratio_interval(0.4 * size, size)
    assert (found.value, found.low, found.high) == pytest.approx((0.4, 0.4, 0.4))
    assert np.isnan(ratio_interval(size, np.array([-1.0, 0.0, 1.0])).value)


def test_few_texts_carry_a_note_and_enough_of_them_none() -> None:
    assert note(FEW) == ""
    assert "one text" in note(1)
    assert str(FEW - 1) in note(FEW - 1)


def test_bad_input_is_named() -> None:
    with pytest.raises(InputError, match="level"):
        mean_interval([1.0, 2.0], 1.5)
    with pytest.raises(InputError, match="between 0 and 1"):
        share_interval([0.5, 1.2])
    with pytest.raises(InputError, match="same texts"):
        ratio_interval(np.ones(3), np.ones(4))
