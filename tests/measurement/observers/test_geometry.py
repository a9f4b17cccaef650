"""The shape of the residual stream against its definitions, row by row."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sinkscope.hooks.modules import Depth
from sinkscope.measurement import measure
from sinkscope.measurement.observers.geometry import HiddenSimilarity, HiddenVectors, MatrixEntropy, Mixing
from sinkscope.measurement.observers.observer import Hidden, LayerSums, Observer
from tests.measurement.observers.residual import LENGTHS, close, measured, outlying, read_rows
from tests.planted.factory import Plant, null_model, planted_ids, planted_model


def of(observer: Observer, values: torch.Tensor) -> dict[str, float]:
    """The statistics of one row (position, width)."""
    sums = {piece.name: piece.values for piece in observer.on_hidden(Hidden(values[None], 0, Depth(0, "decoder")))}
    real = torch.ones(1, len(values), dtype=torch.bool)
    return {name: float(array.values) for name, array in observer.arrays(LayerSums(sums, real, real)).items()}


@pytest.mark.parametrize("tokens", [256, 16, 5])
def test_entropy_is_that_of_the_squared_singular_values(tokens: int, ids: torch.Tensor) -> None:
    model = outlying()
    data, rows = measured(model, ids, LENGTHS, MatrixEntropy(tokens)), read_rows(model, ids, LENGTHS)
    for sample, depth in rows.places:
        state = rows.states[sample][depth]
        if len(state) > tokens:
            state = state[[math.floor(index * len(state) / tokens) for index in range(tokens)]]
        squares = np.linalg.svd(state)[1] ** 2
        wanted = -sum(p * math.log(p) for p in squares / squares.sum() if p > 0)
        close(data["matrix_entropy"][sample, depth], wanted, 1e-5)


def test_entropy_has_its_two_extremes() -> None:
    assert of(MatrixEntropy(), torch.eye(12, 40) * 3)["matrix_entropy"] == pytest.approx(math.log(12))
    assert of(MatrixEntropy(), torch.randn(9, 1) @ torch.randn(1, 5))["matrix_entropy"] == pytest.approx(0, abs=1e-6)
    assert of(MatrixEntropy(), torch.zeros(9, 5))["matrix_entropy"] == 0


def test_more_tokens_than_dimensions_have_the_entropy_of_their_singular_values() -> None:
    values = torch.randn(50, 7).double()
    shares = torch.linalg.svdvals(values) ** 2 / values.square().sum()
    assert of(MatrixEntropy(), values.float())["matrix_entropy"] == pytest.approx(
        float(torch.special.entr(shares).sum())
    )


def test_one_massive_token_takes_the_entropy_down_to_what_is_known() -> None:
    """Two orthogonal directions of energy M² and 1, so large a ratio that fp32 would lose the second."""
    values = torch.tensor([[3e4, 0.0], [0.0, 1.0]])
    share = 1 / (9e8 + 1)
    wanted = -share * math.log(share) - (1 - share) * math.log1p(-share)
    assert of(MatrixEntropy(), values)["matrix_entropy"] == pytest.approx(wanted, rel=1e-4)


def test_a_planted_sink_is_a_valley_of_the_entropy() -> None:
    plant = Plant(onset=2, decay=4)
    planted = measure(planted_model(plant), planted_ids(plant), [MatrixEntropy()]).data["matrix_entropy"]
    plain = measure(null_model(), planted_ids(plant), [MatrixEntropy()]).data["matrix_entropy"]
    assert float(plain.min()) > 2
    assert float(planted[:, 2:4].max()) < 0.1
    assert float(planted[:, [0, 1, 4]].min()) > 2


def test_similarity_is_the_cosine_with_the_first_real_token(ids: torch.Tensor) -> None:
    model = outlying()
    data, rows = measured(model, ids, LENGTHS, HiddenSimilarity()), read_rows(model, ids, LENGTHS)
    for sample, depth in rows.places:
        state = rows.states[sample][depth]
        wanted = [token @ state[0] / np.linalg.norm(token) / np.linalg.norm(state[0]) for token in state]
        close(data["cos_hidden_first"][sample, depth, : len(state)], wanted)
        assert data["cos_hidden_first"][sample, depth, len(state) :].isnull().all()


def test_mixing_is_spread_around_the_mean_and_the_distance_of_the_last_two(ids: torch.Tensor) -> None:
    model = outlying()
    data, rows = measured(model, ids, LENGTHS, Mixing()), read_rows(model, ids, LENGTHS)
    for sample, depth in rows.places:
        state = rows.states[sample][depth]
        mean = sum(state) / len(state)
        close(data["hidden_spread"][sample, depth], sum(sum((token - mean) ** 2) for token in state) ** 0.5)
        close(data["last_pair_distance"][sample, depth], sum((state[-1] - state[-2]) ** 2) ** 0.5)


def test_uniform_causal_averaging_has_the_golden_spread() -> None:
    """Catalog 0: the identity of four tokens, averaged over what comes before, 0 … 16 times."""
    values, golden = torch.eye(4), {0: 1.732051, 1: 0.777282, 2: 0.452136, 4: 0.150436, 8: 0.011670, 16: 0.0000481}
    average = torch.ones(4, 4).tril() / torch.arange(1, 5)[:, None]
    for layer in range(17):
        if layer in golden:
            assert of(Mixing(), values)["hidden_spread"] == pytest.approx(golden[layer], abs=2e-6)
        values = average @ values


def test_tokens_that_are_the_same_have_no_spread_and_one_token_no_pair() -> None:
    assert of(Mixing(), torch.ones(5, 3)) == {"hidden_spread": 0, "last_pair_distance": 0}
    assert math.isnan(of(Mixing(), torch.ones(1, 3))["last_pair_distance"])


@pytest.mark.parametrize("kept", [1, 2, 3, 9])
def test_vectors_of_the_first_samples_are_kept_as_they_are(kept: int, ids: torch.Tensor) -> None:
    model, positions = outlying(), (0, 5, 15, 23)
    data, rows = measured(model, ids, LENGTHS, HiddenVectors(kept, positions)), read_rows(model, ids, LENGTHS)
    found = data["hidden_vectors"]
    assert found.sizes == {"kept": min(kept, 3), "depth": 3, "kept_position": 4, "width": 32}
    assert data["kept_position"].values.tolist() == list(positions)
    for sample, depth in rows.places:
        state = rows.states[sample][depth]
        for index, position in enumerate(positions if sample < kept else ()):
            wanted = state[position] if position < len(state) else np.full(32, np.nan)
            close(found[sample, depth, index], wanted)


def test_samples_beyond_those_kept_are_not_held() -> None:
    def held(kept: int) -> list[slice | None]:
        hidden = Hidden(torch.ones(4, 3, 5), 0, Depth(0, "decoder"), samples_before=2)
        return [piece.samples for piece in HiddenVectors(kept, (0,)).on_hidden(hidden) if piece.name == "vector"]

    assert [held(kept) for kept in (1, 2, 3, 9)] == [[], [], [slice(0, 1)], [slice(0, 4)]]
