"""The largest activations against a sort of all of them, row by row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sinkscope.measurement import measure
from sinkscope.measurement.metrics.massive import massive_entries, massive_lives
from sinkscope.measurement.observers.massive import MassiveActivations, TokenPeaks
from tests.measurement.observers.residual import LENGTHS, close, measured, outlying, read_rows
from tests.planted.factory import NULL, Plant, null_model, planted_ids, planted_model


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_tops_and_medians_are_those_of_the_real_tokens(family: str, ids: torch.Tensor) -> None:
    lengths = LENGTHS if family == "llama" else [24] * 3  # GPT-2 counts padding as positions
    model = outlying(family)
    data, rows = measured(model, ids, lengths, MassiveActivations(top=5), TokenPeaks()), read_rows(model, ids, lengths)
    for sample, depth in rows.places:
        state, here = rows.states[sample][depth], {"sample": sample, "depth": depth}
        order = sorted(np.ndindex(state.shape), key=lambda entry: -abs(state[entry]))[:5]
        assert data["hidden_top_position"][here].values.tolist() == [position for position, _ in order]
        assert data["hidden_top_dimension"][here].values.tolist() == [dimension for _, dimension in order]
        close(data["hidden_top"][here], [state[entry] for entry in order])
        sizes = sorted(np.abs(state).ravel())
        close(data["hidden_median"][here], sizes[(len(sizes) - 1) // 2], 1e-5)
        close(data["hidden_max"][here][: lengths[sample]], [max(abs(token)) for token in state])
        assert data["hidden_max"][here][lengths[sample] :].isnull().all()


def test_more_entries_than_there_are_is_not_an_entry() -> None:
    data = measure(planted_model(), torch.tensor([[3]]), [MassiveActivations(top=70)]).data
    assert data["hidden_top"].notnull().sum("top").values.tolist() == [[64] * 5]


@pytest.mark.parametrize(
    "plant", [Plant(), Plant(sinks=(7,), dimension=40, onset=2, decay=3), Plant(sinks=(0, 9), onset=0), NULL]
)
def test_planted_massive_activations_are_found_and_nothing_else(plant: Plant) -> None:
    model = planted_model(plant) if plant.sinks else null_model()
    data = measure(model, planted_ids(plant), [MassiveActivations()]).data
    entries = massive_entries(
        *(data[f"hidden_{name}"].values for name in ("top", "top_position", "top_dimension", "median"))
    )
    wanted = {(depth, sink, plant.dimension) for depth in plant.depths(4) for sink in plant.sinks}
    assert set(zip(entries["depth"], entries["position"], entries["dimension"], strict=True)) == wanted
    if not wanted:
        return
    assert (entries["samples"] == 1).all()
    assert ((entries["value"] - 1000).abs() < 20).all()
    lives = massive_lives(entries, 5)
    assert set(lives["onset"]) == {plant.onset}
    assert set(lives["last"]) == {plant.depths(4)[-1]}
    assert set(lives["decay"].dropna()) == ({plant.decay} if plant.decay else set())
