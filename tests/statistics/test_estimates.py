"""Intervals of a few seeds against scipy's own tests, tables and closed forms."""

from __future__ import annotations

import math
import random
import subprocess
import sys

import pytest
from scipy import stats

from sinkscope.statistics.estimates import Estimate, estimate

DRAW = random.Random(5)
SAMPLES = [
    tuple([DRAW.gauss(mean, spread) for _ in range(n)] for mean, spread, n in ((2.0, 1.0, a), (0.5, 3.0, b)))
    for a, b in ((3, 3), (10, 3), (2, 7), (8, 5))
]


@pytest.mark.parametrize("pair", SAMPLES)
def test_a_difference_is_welch_s(pair):
    one, other = pair
    found = estimate([(1.0, one), (-1.0, other)])
    for limit in (-1.0, 0.0, 2.5):
        wanted = stats.ttest_ind([x - limit for x in one], other, equal_var=False, alternative="greater").pvalue
        assert found.above(limit) == pytest.approx(wanted, rel=1e-12)
    interval = stats.ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
    assert (found.bound(0.025), found.bound(0.975)) == pytest.approx((interval.low, interval.high), rel=1e-12)


@pytest.mark.parametrize("values", [SAMPLES[0][0], SAMPLES[1][0]])
def test_one_sample_has_student_s_interval(values):
    found = estimate([(1.0, values)])
    interval = stats.ttest_1samp(values, 0.0).confidence_interval(0.9)
    assert (found.bound(0.05), found.bound(0.95)) == pytest.approx((interval.low, interval.high), rel=1e-12)
    assert found.above(1.0) == pytest.approx(stats.ttest_1samp(values, 1.0, alternative="greater").pvalue, rel=1e-12)


def test_weights_scale_an_effect_and_more_samples_add_up():
    one, other = SAMPLES[1]
    plain, scaled = estimate([(1.0, one), (-1.0, other)]), estimate([(2.0, one), (-2.0, other)])
    assert (scaled.mean, scaled.error) == pytest.approx((2 * plain.mean, 2 * plain.error))
    assert scaled.df == pytest.approx(plain.df)
    third = estimate([(1.0, one), (-0.5, other), (-0.5, SAMPLES[3][0])])
    assert third.n == (10, 3, 8)
    assert third.error**2 == pytest.approx(
        sum(w**2 * stats.tstd(x) ** 2 / len(x) for w, x in ((1, one), (0.5, other), (0.5, SAMPLES[3][0])))
    )


@pytest.mark.parametrize(
    ("p", "df", "expected"),  # printed tables
    [(0.975, 1, 12.7062), (0.975, 2, 4.3027), (0.95, 2, 2.9200), (0.95, 4, 2.1318), (0.95, 30, 1.6973)],
)
def test_bounds_are_those_of_the_tables(p, df, expected):
    assert Estimate(1.0, 2.0, df, (3,)).bound(p) == pytest.approx(1.0 + 2.0 * expected, abs=1e-4)
    assert Estimate(0.0, 1.0, df, (3,)).bound(1 - p) == pytest.approx(-expected, abs=5e-5)


def test_degrees_of_freedom_need_not_be_whole_and_tails_are_exact():
    for t in (-3.0, -0.5, 0.0, 1.0, 8.0):
        assert Estimate(0.0, 1.0, 1, (2,)).above(t) == pytest.approx(0.5 + math.atan(t) / math.pi, abs=1e-14)
    assert 0 < Estimate(1e6, 1.0, 7.3, (5, 5)).above(0.0) < 1e-30


def test_what_does_not_vary_is_certain_and_what_is_alone_is_not_known():
    same = estimate([(1.0, [0.1 + 0.2, 0.3 + 5e-17, 0.1 + 0.2]), (-1.0, [0.1, 0.1])])
    assert (same.error, same.bound(0.975)) == (0.0, same.mean)
    assert (same.above(0.1), same.above(0.3)) == (0.0, 1.0)
    alone = estimate([(1.0, [1.0, 2.0, 3.0]), (-1.0, [1.0])])
    assert math.isnan(alone.bound(0.95))
    assert math.isnan(alone.above(0.0))


def test_a_claim_can_be_written_down_without_scipy():
    code = "import sys; import sinkscope.statistics.claims; assert 'scipy' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
