"""Student's t against tables, closed forms, and arithmetic of many digits."""

from __future__ import annotations

import math

import mpmath
import pytest

from sinkscope.student import cumulative, holm, quantile


@pytest.mark.parametrize(
    ("p", "df", "expected"),  # printed tables
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.3027),
        (0.95, 2, 2.9200),
        (0.95, 4, 2.1318),
        (0.975, 9, 2.2622),
        (0.95, 30, 1.6973),
    ],
)
def test_quantiles_are_those_of_the_tables(p, df, expected):
    assert quantile(p, df) == pytest.approx(expected, abs=5e-5)
    assert quantile(1 - p, df) == pytest.approx(-expected, abs=5e-5)


@pytest.mark.parametrize("df", [1, 1.37, 2, 2.9, 5, 11.3, 40, 300, 1e5])
@pytest.mark.parametrize("t", [-30.0, -2.5, -0.1, 0.0, 0.3, 1.7, 4.0, 20.0])
def test_it_agrees_with_many_digits(t, df):
    with mpmath.workdps(40):
        tail = (
            mpmath.betainc(df / mpmath.mpf(2), mpmath.mpf(0.5), 0, df / (df + mpmath.mpf(t) ** 2), regularized=True) / 2
        )
        expected = float(1 - tail if t >= 0 else tail)
    assert cumulative(t, df) == pytest.approx(expected, rel=1e-9, abs=1e-14)


def test_one_and_two_degrees_of_freedom_have_closed_forms():
    for t in (-3.0, -0.5, 0.0, 1.0, 8.0):
        assert cumulative(t, 1) == pytest.approx(0.5 + math.atan(t) / math.pi, abs=1e-14)
        assert cumulative(t, 2) == pytest.approx(0.5 + t / (2 * math.sqrt(2 + t * t)), abs=1e-14)


@pytest.mark.parametrize("df", [1, 1.5, 3, 17, 1000])
@pytest.mark.parametrize("p", [0.001, 0.025, 0.5, 0.8, 0.95, 0.999])
def test_a_quantile_is_where_the_distribution_has_its_share(p, df):
    assert cumulative(quantile(p, df), df) == pytest.approx(p, abs=1e-12)


def test_ends_and_what_is_no_number():
    assert (cumulative(math.inf, 3), cumulative(-math.inf, 3)) == (1.0, 0.0)
    assert math.isnan(cumulative(math.nan, 3))


def test_holm_s_correction():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
    assert holm([0.02]) == [0.02]
