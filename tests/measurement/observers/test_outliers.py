"""Outlier statistics against loops over the entries of a row, and planted outliers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sinkscope.errors import InputError
from sinkscope.hooks.modules import Depth
from sinkscope.measurement.observers.observer import Hidden, LayerSums
from sinkscope.measurement.observers.outliers import OutlierStatistics
from tests.measurement.observers.residual import LENGTHS, close, measured, outlying, read_rows


def of(values: torch.Tensor, *sigmas: float) -> dict[str, np.ndarray]:
    """The statistics of one row (position, width)."""
    observer = OutlierStatistics(sigmas or (6.0,))
    pieces = observer.on_hidden(Hidden(values[None], 0, Depth(0, "decoder")))
    sums = {piece.name: piece.values for piece in pieces}
    real = torch.ones(1, len(values), dtype=torch.bool)
    arrays = observer.arrays(LayerSums(sums, real, real))
    return {name: array.values[0, 0].numpy() for name, array in arrays.items()}


def test_statistics_are_those_of_the_entries_of_real_tokens(ids: torch.Tensor) -> None:
    model, sigmas = outlying(), (2.0, 4.0)
    data, rows = measured(model, ids, LENGTHS, OutlierStatistics(sigmas)), read_rows(model, ids, LENGTHS)
    seen = set()
    for sample, depth in rows.places:
        state = rows.states[sample][depth]
        entries, here = state.ravel(), {"sample": sample, "depth": depth}
        mean = sum(entries) / len(entries)
        variance = sum((entry - mean) ** 2 for entry in entries) / len(entries)
        fourth = sum((entry - mean) ** 4 for entry in entries) / len(entries)
        close(data["kurtosis"][here], fourth / (variance**2 + 1e-6))
        neurons = [sum(state[:, neuron] ** 2) / len(state) for neuron in range(state.shape[1])]
        close(data["kurtosis_neurons"][here], np.mean([s**2 for s in neurons]) / np.mean(neurons) ** 2)
        ratios = [max(abs(token)) / sorted(abs(token))[(len(token) - 1) // 2] for token in state]
        close(data["max_median_ratio"][here], np.mean(ratios))
        for sigma in sigmas:
            found = [entry for entry in np.ndindex(state.shape) if abs(state[entry] - mean) > sigma * variance**0.5]
            at = {**here, "sigma": sigmas.index(sigma)}
            assert data["outlier_count"][at] == len(found)
            seen.add(len(found))
            for axis, name in enumerate(("outlier_token_share", "outlier_dimension_share")):
                counts = [sum(entry[axis] == index for entry in found) for index in range(state.shape[axis])]
                close(data[name][at], max(counts) / len(found) if found else np.nan)
    assert len(seen) > 4
    assert data["sigma"].values.tolist() == [2, 4]


@pytest.mark.parametrize(("length", "golden"), [(4, 7 / 3), (96, 94.0105), (768, 766.0013), (2048, 2046.0005)])
def test_kurtosis_of_one_entry_among_zeros_is_golden(length: int, golden: float) -> None:
    values = torch.zeros(1, length)
    values[0, 1] = 1000  # so large that the constant under σ⁴ does not count
    assert of(values)["kurtosis"] == pytest.approx(golden, rel=1e-4)


def test_gaussian_entries_have_kurtosis_three_and_even_neurons() -> None:
    found = of(torch.randn(512, 256))
    assert found["kurtosis"] == pytest.approx(3, abs=0.1)
    assert found["kurtosis_neurons"] == pytest.approx(1, abs=0.02)
    assert found["max_median_ratio"] == pytest.approx(4.5, abs=0.5)
    assert found["outlier_count"] == 0
    assert np.isnan(found["outlier_token_share"]), "there are no outliers that it could be a share of"


def test_the_published_constant_counts_where_activations_are_small() -> None:
    values = torch.randn(64, 64) * 0.03
    square = float(values.var(correction=0)) ** 2
    assert of(values)["kurtosis"] == pytest.approx(3 * square / (square + 1e-6), rel=0.1)


def test_one_neuron_with_all_the_energy_has_the_kurtosis_of_the_width() -> None:
    values = torch.zeros(16, 40)
    values[:, 5] = torch.randn(16)
    assert of(values)["kurtosis_neurons"] == pytest.approx(40)


def test_planted_outliers_are_told_apart_by_token_and_by_channel() -> None:
    """Token 0 scaled by 500, or channel c by 50."""
    tokens, width = 64, 768
    by_token, by_channel = torch.randn(tokens, width), torch.randn(tokens, width)
    by_token[0] *= 500
    by_channel[:, 9] *= 50
    found = of(by_token)
    assert found["outlier_token_share"] == 1
    assert found["outlier_dimension_share"] == pytest.approx(1 / found["outlier_count"])
    assert found["outlier_dimension_share"] < 0.01
    found = of(by_channel)
    assert found["outlier_dimension_share"] == 1
    assert found["outlier_token_share"] == pytest.approx(1 / found["outlier_count"])
    assert 1 / tokens <= found["outlier_token_share"] < 1.5 / tokens


@pytest.mark.parametrize("sigmas", [(), (0.0,), (3.0, -1.0)])
def test_sigmas_are_positive(sigmas: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="sigmas"):
        OutlierStatistics(sigmas)
