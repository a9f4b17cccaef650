"""Both criteria of massive activations, and their table, on entries written by hand (Sun et al. 2024)."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from sinkscope.errors import InputError
from sinkscope.measurement import measure, metrics
from sinkscope.measurement.metrics import infinity_norm, infinity_norms, token_peak_ratios
from sinkscope.measurement.metrics.massive import is_massive, massive_entries, massive_lives
from sinkscope.measurement.observers.massive import TokenPeaks
from tests.planted.factory import Plant, null_model, planted_ids, planted_model

PEAKS = np.array([[[1.0, 9, 2], [4, 4, 4]], [[3.0, 5, np.nan], [1, 8, np.nan]]])  # sample, depth, position
LAYERS = [f"layers.{index}" for index in range(4)]


def stored(*entries: tuple[int, int, int, int, float], median: float = 0.1) -> tuple[np.ndarray, ...]:
    """Two samples, four depths, two entries kept: (sample, depth, position, dimension, value)."""
    top, position, dimension = (np.full((2, 4, 2), np.nan) for _ in range(3))
    for sample, depth, token, dim, value in entries:
        place = int((~np.isnan(top[sample, depth])).sum())
        top[sample, depth, place] = value
        position[sample, depth, place], dimension[sample, depth, place] = token, dim
    return top, position, dimension, np.full((2, 4), median)


def test_both_criteria_must_hold() -> None:
    assert is_massive(np.array([[101.0, -101, 100, 99]]), np.array([0.1])).tolist() == [[True, True, False, False]]
    assert is_massive(np.array([[300.0, -299.0]]), np.array([0.3])).tolist() == [[True, False]]
    assert is_massive(np.array([[300.0, np.nan]]), np.array([np.nan])).tolist() == [[False, False]]
    assert is_massive(np.array([[7.0]]), np.array([1.0]), magnitude=6.0, ratio=5.0).all()


def test_the_table_counts_samples_and_averages_over_those_that_have_the_entry() -> None:
    found = massive_entries(
        *stored((0, 1, 0, 5, -200), (0, 1, 3, 2, 900), (1, 1, 0, 5, -400), (0, 3, 0, 5, 150), (1, 3, 0, 5, 50))
    )
    wanted = pd.DataFrame(
        {
            "depth": [1, 1, 3],
            "position": [0, 3, 0],
            "dimension": [5, 2, 5],
            "samples": [1.0, 0.5, 0.5],
            "value": [-300.0, 900.0, 150.0],
            "over_median": [3000.0, 9000.0, 1500.0],
        }
    )
    pd.testing.assert_frame_equal(found, wanted)


def test_samples_that_were_not_measured_are_not_in_the_share() -> None:
    top, position, dimension, median = stored((0, 1, 0, 5, 200))
    median[1] = np.nan
    assert massive_entries(top, position, dimension, median)["samples"].tolist() == [1.0]


def test_lives_run_from_the_first_to_the_last_depth() -> None:
    entries = massive_entries(
        *stored((0, 1, 0, 5, 300), (1, 1, 0, 5, 300), (0, 2, 0, 5, -800), (0, 2, 4, 1, 200), (0, 3, 4, 1, 500))
    )
    lives = massive_lives(entries, 4)
    assert lives[["position", "dimension", "onset", "last", "peak", "value"]].values.tolist() == [
        [0, 5, 1, 2, 2, -800],
        [4, 1, 2, 3, 3, 500],
    ]
    assert lives["decay"].fillna(-1).tolist() == [3, -1]
    assert lives["samples"].tolist() == [0.5, 0.5]
    assert massive_lives(entries, 4, least=0.5)[["onset", "last", "peak"]].values.tolist() == [[1, 1, 1]]


def test_nothing_massive_is_an_empty_table() -> None:
    entries = massive_entries(*stored((0, 1, 0, 5, 2.0)))
    assert entries.empty
    assert massive_lives(entries, 4).empty
    assert list(massive_lives(entries, 4).columns)[:3] == ["position", "dimension", "onset"]


@pytest.mark.parametrize("threshold", ["magnitude", "ratio"])
def test_thresholds_are_positive(threshold: str) -> None:
    with pytest.raises(InputError, match=f"{threshold} = 0"):
        is_massive(np.ones((1, 1)), np.ones(1), **{threshold: 0.0})


def test_the_infinity_norm_is_averaged_over_samples_before_the_largest_depth_is_taken() -> None:
    assert infinity_norms(PEAKS).tolist() == [(9 + 5) / 2, (4 + 8) / 2]
    assert infinity_norm(PEAKS) == 7
    assert np.isnan(infinity_norm(np.full((2, 2, 3), np.nan)))


def test_ratios_of_token_wise_maxima_are_to_their_median() -> None:
    found = token_peak_ratios(PEAKS)
    assert found.upper.tolist() == [[9 / 2, 1], [5 / 4, 8 / 4.5]]
    assert found.lower.tolist() == [[2 / 1, 1], [4 / 3, 4.5 / 1]]
    assert np.isnan(token_peak_ratios(np.zeros((1, 1, 3))).lower).all()
    assert np.isnan(token_peak_ratios(np.full((1, 1, 3), np.nan)).upper).all()


def test_a_planted_token_shows_in_the_upper_ratio_alone() -> None:
    plant = Plant(sinks=(7,), onset=2)
    planted = measure(planted_model(plant), planted_ids(plant), [TokenPeaks()]).data["hidden_max"].values
    found = token_peak_ratios(planted)
    assert (found.upper[:, 2:] > 200).all()
    assert (found.upper[:, :2] < 5).all()
    assert (found.lower < 3).all()
    assert 990 < infinity_norm(planted) < 1010
    plain = measure(null_model(), planted_ids(plant), [TokenPeaks()]).data["hidden_max"].values
    assert (token_peak_ratios(plain).upper < 5).all()
    assert infinity_norm(plain) < 5


def peaks() -> np.ndarray:
    return np.random.default_rng(0).uniform(1, 2, (5, 4, 64))


def test_planted_experts_are_found_and_nothing_else() -> None:
    values = peaks()
    values[2, 1, 7] = 500.0
    table = metrics.super_experts(values, LAYERS)
    assert table[["layer", "expert"]].values.tolist() == [["layers.1", 7]]
    assert table["peak"].iloc[0] == 500.0
    assert table["mean"].iloc[0] == values[:, 1, 7].mean()


def test_an_expert_far_below_the_largest_is_not_super() -> None:
    values = peaks()
    values[:, 1, 7], values[:, 2, 3] = 500.0, 20.0
    assert len(metrics.super_experts(values, LAYERS)) == 1
    assert len(metrics.super_experts(values, LAYERS, share=0.01)) == 2


def test_experts_that_were_never_used_count_nowhere() -> None:
    values = peaks()
    values[:, 0, 0] = np.nan
    values[:, 1, 7] = 500.0
    assert len(metrics.super_experts(values, LAYERS)) == 1


def test_an_infinite_token_makes_the_upper_ratio_infinite() -> None:
    found = token_peak_ratios(np.array([[[np.inf, 2.0, 4.0]], [[np.inf, np.inf, 1.0]]]))
    assert found.upper[0, 0] == np.inf
    assert found.lower[0, 0] == 2.0
    assert np.isnan(found.upper[1, 0]), "the median is infinite, too"


def test_a_row_with_a_real_token_that_is_nan_has_no_ratio_and_no_norm() -> None:
    tokens = np.array([[3, 3], [2, 3]])
    found = token_peak_ratios(PEAKS, tokens)
    assert found.upper[0].tolist() == [9 / 2, 1]
    assert found.upper[1, 0] == 5 / 4
    assert np.isnan([found.upper[1, 1], found.lower[1, 1]]).all()
    assert infinity_norms(PEAKS, tokens).tolist() == [(9 + 5) / 2, 4]


def test_an_infinite_expert_is_super_and_hides_no_other() -> None:
    values = peaks()
    values[:, 1, 7], values[2, 2, 3], values[2, 0, 1] = 500.0, np.inf, np.inf
    found = metrics.super_experts(values, LAYERS)
    assert {*zip(found["layer"], found["expert"], strict=True)} == {("layers.1", 7), ("layers.2", 3), ("layers.0", 1)}


def test_a_list_of_entries_is_truncated_where_all_of_it_is_massive() -> None:
    top = np.array([[[900.0, 800.0], [900.0, 1.0], [np.nan, np.nan]]])
    assert metrics.truncated(top, np.array([[0.1, 0.1, np.nan]])).tolist() == [[True, False, False]]
