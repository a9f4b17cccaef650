"""Sweeps over epsilon and T, mass on the first tokens, boost over uniform attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sinkscope.errors import InputError
from sinkscope.metrics.sweep import EPSILONS, boost, mass_on_first, sweep
from sinkscope.probes import AttentionReceived, measure
from sinkscope.probes.observers.incoming import IncomingAttention
from sinkscope.probes.observers.lengths import ReceivedByLength
from tests.planted.factory import NULL, Plant, null_model, planted_ids, planted_model
from tests.probes.conftest import build
from tests.probes.observers.naive import HUB, close, look

LENGTHS = (8, 16, 24)


def test_a_cell_of_the_sweep_is_the_share_of_heads_above_epsilon() -> None:
    received = np.array([[[[0.9, 0.2], [0.4, np.nan]], [[0.1, 0.31], [0.35, 0.0]]]])  # one sample, two layers and heads
    table = sweep(received, (0.3, 0.35))
    np.testing.assert_allclose(table, [[75, 25], [50, 0]])


def test_the_sweep_is_the_sink_rate_of_shorter_texts(ids: torch.Tensor) -> None:
    model = build("llama")
    data = measure(model, ids, [ReceivedByLength(LENGTHS)]).data
    table = sweep(data["attention_received_by_length"].values)
    assert table.shape == (5, 3)
    for column, length in enumerate(LENGTHS):
        measurement = measure(model, ids[:, :length], [AttentionReceived()])
        for row, epsilon in enumerate(EPSILONS):
            wanted = 100 * (measurement.data["attention_received"].values[..., 0] > epsilon).mean()
            assert table[row, column] == pytest.approx(wanted)
    assert bool((np.diff(table, axis=0) <= 0).all()), "never more heads above a higher threshold"


def test_a_planted_sink_is_one_at_every_threshold_and_length() -> None:
    observer = ReceivedByLength((16, 32))
    for plant, model, rate in ((Plant(), planted_model(), 75), (NULL, null_model(), 0)):
        data = measure(model, planted_ids(plant), [observer]).data["attention_received_by_length"]
        np.testing.assert_allclose(
            sweep(data.values, (0.3, 0.5, 0.8)), rate
        )  # the first of four layers has no sink yet


def test_an_epsilon_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="must lie between 0 and 1"):
        sweep(np.zeros((1, 1, 1, 1)), (1.5,))
    with pytest.raises(InputError, match="no epsilon"):
        sweep(np.zeros((1, 1, 1, 1)), ())


@pytest.mark.parametrize("count", [1, 4, 8])
@pytest.mark.parametrize("name", HUB)
def test_mass_is_the_mean_weight_on_the_first_columns(name: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data, layers = look(name, monkeypatch, AttentionReceived())
    causal = np.array([layer.call.causal for layer in layers])
    mass = mass_on_first(data["attention_received"].values, data["tokens"].values, causal, count)
    for index, layer in enumerate(layers):
        close(mass[:, index], layer.weights[..., :count].sum(-1).mean(-1))


def test_mass_of_rows_shorter_than_asked_for_is_all_of_it() -> None:
    received = np.full((1, 1, 1, 6), np.nan)
    received[..., :3] = [0.611111, 0.416667, 1 / 3]  # uniform causal attention of three tokens
    assert float(mass_on_first(received, np.array([[3]]), np.array([True]), 6)[0, 0, 0]) == pytest.approx(1, abs=1e-5)
    assert np.isnan(mass_on_first(np.full((1, 1, 1, 4), np.nan), np.array([[0]]), np.array([True]), 2)).all()


@pytest.mark.parametrize("count", [0, 5])
def test_mass_on_more_than_was_measured_is_refused(count: int) -> None:
    with pytest.raises(InputError, match="4 were measured"):
        mass_on_first(np.zeros((1, 1, 1, 4)), np.array([[4]]), np.array([True]), count)


def test_uniform_attention_has_a_boost_of_one(ids: torch.Tensor) -> None:
    model = build("mistral")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.zero_()
    data = measure(model, ids, [AttentionReceived(), IncomingAttention()]).data
    close(boost(data["attention_received"].values, data["uniform_received"].values), np.ones((3, 2, 4, 24)), 1e-4)


def test_the_boost_of_a_planted_sink_stands_out() -> None:
    plant = Plant(sinks=(7,))
    observers = [AttentionReceived(), IncomingAttention()]
    planted, null = (
        measure(model, planted_ids(plant), observers).data for model in (planted_model(plant), null_model())
    )
    found, flat = (
        boost(data["attention_received"].values, data["uniform_received"].values) for data in (planted, null)
    )
    assert found[:, 1:, :, 7].min() > 15
    assert np.delete(found[:, 1:, :, :28], 7, axis=-1)[..., 7:].max() < 1
    assert flat[..., :28].max() < 2


def test_a_key_that_no_query_sees_has_no_boost() -> None:
    assert np.isnan(boost(np.zeros((1, 1, 1, 2)), np.array([[[0.0, np.nan]]]))).all()
