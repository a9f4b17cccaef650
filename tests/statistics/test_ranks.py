"""Ranks and rank correlation against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from sinkscope.statistics.ranks import rank_correlation, ranks

NAN = float("nan")


def test_ties_share_their_mean_rank_and_what_is_unknown_has_none() -> None:
    np.testing.assert_array_equal(
        ranks(np.array([[3.0, 1.0, 3.0, NAN, 2.0, 3.0], [5.0, 5.0, NAN, NAN, 5.0, 5.0]])),
        [[4, 1, 4, NAN, 2, 4], [2.5, 2.5, NAN, NAN, 2.5, 2.5]],
    )


def test_ranks_count_what_is_smaller_and_half_of_what_is_equal() -> None:
    values = np.random.default_rng(0).integers(0, 8, (3, 5, 30)).astype(float)
    wanted = [[[(row < x).sum() + ((row == x).sum() + 1) / 2 for x in row] for row in block] for block in values]
    np.testing.assert_array_equal(ranks(values), wanted)


@pytest.mark.parametrize(
    ("one", "other", "correlation"),
    [
        ([1, 2, 3, 4], [10, 20, 25, 400], 1),
        ([1, 2, 3, 4], [4, 3, 2, 0], -1),
        ([1, 2, 3, 4, 5], [2, 1, 4, 3, 5], 0.8),  # 1 − 6 Σ d² / (n (n² − 1))
        ([1, 2, 2, 3], [1, 3, 2, 4], 4.5 / np.sqrt(4.5 * 5)),
        ([1, NAN, 2, 3, 9], [5, 0, 6, 7, NAN], 1),
    ],
)
def test_known_correlations(one: list, other: list, correlation: float) -> None:
    assert float(rank_correlation(np.array(one, float), np.array(other, float))) == pytest.approx(correlation)


@pytest.mark.parametrize(
    ("one", "other"),
    [([1.0, 1, 1], [1.0, 2, 3]), ([1.0, 2], [2.0, 1]), ([1, 2, NAN, 4], [1, NAN, 3, 4]), ([NAN] * 4, [1.0, 2, 3, 4])],
)
def test_too_little_to_correlate_is_nothing(one: list, other: list) -> None:
    assert np.isnan(rank_correlation(np.array(one), np.array(other)))


def test_only_the_order_matters() -> None:
    one, other = np.random.default_rng(1).normal(size=(2, 4, 50))
    np.testing.assert_allclose(rank_correlation(one, other), rank_correlation(np.exp(one), other**3))
    np.testing.assert_allclose(rank_correlation(one, other), -rank_correlation(-one, other))
