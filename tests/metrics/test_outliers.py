"""Norms and ratios of token-wise maxima, on numbers written by hand and on planted tokens [X16]."""

from __future__ import annotations

import numpy as np

from sinkscope.metrics.outliers import infinity_norm, infinity_norms, token_peak_ratios
from sinkscope.probes import measure
from sinkscope.probes.observers.massive import TokenPeaks
from tests.planted.factory import Plant, null_model, planted_ids, planted_model

PEAKS = np.array([[[1.0, 9, 2], [4, 4, 4]], [[3.0, 5, np.nan], [1, 8, np.nan]]])  # sample, depth, position


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
