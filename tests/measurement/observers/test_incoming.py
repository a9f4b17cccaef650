"""Votes, how many queries see a key, and uniform attention, key by key."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sinkscope.measurement import AttentionReceived, measure
from sinkscope.measurement.observers.incoming import IncomingAttention
from tests.measurement.conftest import build
from tests.measurement.observers.naive import ALL, Whole, close, look
from tests.measurement.test_batches import padded
from tests.planted.factory import NULL, Plant, null_model, planted_ids, planted_model

GOLDEN = {8: 0.339732, 16: 0.211296, 32: 0.126828, 64: 0.0741233}


@pytest.mark.parametrize("name", ALL)
def test_votes_are_those_of_the_whole_map(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, layers = look(name, monkeypatch, IncomingAttention())
    for index, layer in enumerate(layers):
        weights, visible = layer.weights, layer.visible
        slot = layer.slot
        if name == "lab:sigmoid":
            weights, slot = weights / (weights.sum(-1, keepdim=True) + 1e-8), torch.zeros_like(slot)
        keys = weights.shape[-1]
        for head in range(weights.shape[1]):
            votes = np.zeros(keys)
            for query in range(weights.shape[2]):
                row = weights[1, head, query].tolist()
                best = row.index(max(row))
                votes[best] += float(row[best] >= slot[1, head, query])
            close(data["most_attended"][1, index, head, :keys], votes / visible.sum(0).numpy())


@pytest.mark.parametrize("name", ALL)
def test_uniform_attention_is_spread_over_what_a_query_sees(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, layers = look(name, monkeypatch, AttentionReceived())
    assert data["uniform_received"].dims == ("sample", "layer", "position")
    for index, layer in enumerate(layers):
        visible = layer.visible.double()
        keys = visible.shape[1]
        wanted = (visible / visible.sum(-1, keepdim=True)).sum(0) / visible.sum(0)
        close(data["uniform_received"][:, index, :keys], wanted.expand(3, -1))
        close(data["visible_queries"][:, index, :keys], visible.sum(0).expand(3, -1))
        close(data["attention_received"][:, index, :, :keys], _raw(name, layer).sum(-2) / visible.sum(0))
        assert bool(data["causal"][index]) == (layer.call.layer.stack == "decoder")


def _raw(name: str, layer: Whole) -> torch.Tensor:
    """The weights that the metric reads."""
    if name != "lab:sigmoid":
        return layer.weights
    return layer.weights / (layer.weights.sum(-1, keepdim=True) + 1e-8)


@pytest.mark.parametrize("tokens", GOLDEN)
def test_golden_values_of_uniform_attention(tokens: int) -> None:
    ids = torch.randint(3, 97, (1, tokens))
    uniform = measure(build("llama"), ids, [IncomingAttention()]).data["uniform_received"][0, 0]
    assert float(uniform[0]) == pytest.approx(GOLDEN[tokens], abs=1e-6)
    if tokens == 64:
        close(uniform[[0, 1, 2, 63]], [0.074123, 0.059427, 0.052321, 0.015625])
        assert float(uniform.max()) < 0.3


def test_a_tie_is_the_first_keys(ids: torch.Tensor) -> None:
    model = build("llama")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.zero_()
    data = measure(model, ids, [IncomingAttention(), AttentionReceived()]).data
    assert bool((data["most_attended"][..., 0] == 1).all())
    assert float(data["most_attended"][..., 1:].max()) == 0
    close(data["attention_received"], np.broadcast_to(data["uniform_received"].values[:, :, None], (3, 2, 4, 24)))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["mistral", "lab:sigmoid", "lab:sink_logit"])
def test_a_padded_row_equals_the_same_row_alone(name: str, side: str, ids: torch.Tensor) -> None:
    model, lengths = build(name), [24, 19, 13]
    together = measure(model, padded(ids, lengths, side), [IncomingAttention()]).data
    for row, length in enumerate(lengths):
        text = ids[row : row + 1, -length:] if side == "left" else ids[row : row + 1, :length]
        alone = measure(model, text, [IncomingAttention()]).data
        for variable in ("most_attended", "uniform_received", "visible_queries"):
            close(together[variable][row, ..., :length], alone[variable][0], 2e-5)
            assert bool(together[variable][row, ..., length:].isnull().all())


@pytest.mark.parametrize("plant", [Plant(), Plant(sinks=(0, 9)), Plant(sinks=(7,)), NULL])
def test_planted_sinks_have_the_votes(plant: Plant) -> None:
    model = planted_model(plant) if plant.sinks else null_model()
    data = measure(model, planted_ids(plant), [IncomingAttention()]).data.isel(layer=slice(1, None))
    votes = data["most_attended"].mean(("sample", "layer", "head")).values[:16]
    assert set(np.flatnonzero(votes > 0.4)) == set(plant.sinks)
