"""Whether a head writes less on the sink: planted weights and norms, and a planted model."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr

from sinkscope_replication.observing import no_op
from sinkscope_replication.observing.no_op import BEHIND, QUERIES, ratios, written_on_the_sink
from tests.planted.factory import NULL, null_model, planted_ids, planted_model
from tests.planted.plant import Plant

RECEIVED = np.array([[0.1, 0.2, 0.1], [0.5, 0.2, 0.1]])  # head (1, 0) has the sink


def planted(on: float = 0.9, off: float = 0.1, count: int = 2 * QUERIES) -> tuple[np.ndarray, np.ndarray]:
    """Two layers of three heads; in head (1, 0) every second query is on the sink, and writes a quarter there."""
    weights = np.full((1, 2, 3, count), 0.5)
    weights[0, 1, 0] = np.where(np.arange(count) % 2, on, off)
    weights[0, 0, 1] = weights[0, 1, 0]  # as many queries on the first token, without having the sink
    norms = np.ones((1, 2, 3, count))
    norms[0, 1, 0, 1::2] = 0.25
    norms[0, 1, 1, 1::2] = 0.8  # a control that differs between the queries as well
    return weights, norms


def test_a_head_with_the_sink_is_compared_with_itself_and_with_those_of_its_layer_without() -> None:
    ((own, controls),) = ratios(*planted(), RECEIVED)
    assert own == pytest.approx(0.25)
    assert controls == pytest.approx((0.8 + 1.0) / 2)
    ((_, controls),) = ratios(*planted(), np.array([[0.1, 0.2, 0.1], [0.5, 0.4, 0.1]]))
    assert controls == 1.0, "a head with the sink is no control"


@pytest.mark.parametrize("received", [0.3, 0.5])
def test_nothing_is_compared_without_the_sink_or_without_a_head_that_lacks_it(received: float) -> None:
    assert ratios(*planted(), np.array([[0.0] * 3, [received] * 3])) == []


@pytest.mark.parametrize("weights", [{"on": 0.8}, {"off": 0.2}, {"count": 2 * QUERIES - 2}])
def test_a_head_without_enough_queries_of_both_kinds_is_left_out(weights) -> None:
    assert ratios(*planted(**weights), RECEIVED) == []


def test_queries_right_behind_the_sink_do_not_count(monkeypatch) -> None:
    """Weights that are on the sink at even positions alone, and a head that writes nothing right behind it."""
    samples, tokens = 60, BEHIND + 4
    weights, norms = np.full((samples, 1, 2, tokens), 0.1), np.ones((samples, 1, 2, tokens))
    weights[:, 0, 0, ::2] = 0.9
    norms[:, 0, 0, :BEHIND:2] = 0.001
    norms[:, 0, 0, BEHIND::2] = 0.5
    arrays = {"given_to": weights, "output_norm": norms}
    data = {name: xr.DataArray(values, dims=("sample", "layer", "head", "position")) for name, values in arrays.items()}
    monkeypatch.setattr(no_op, "measure", lambda *_, **__: SimpleNamespace(data=data))
    found = dict(written_on_the_sink(null_model(), {}, 0.0, 4))
    assert found == pytest.approx({"resting/heads": 1.0, "resting/on_sink": 0.5, "resting/controls": 1.0})


def test_a_planted_head_is_always_on_its_sink_so_nothing_can_be_compared() -> None:
    for model, plant in ((planted_model(Plant(heads=((1, 0),))), Plant(heads=((1, 0),))), (null_model(), NULL)):
        found = dict(written_on_the_sink(model, {"input_ids": planted_ids(plant, samples=4, tokens=40)}, 0.0, 4))
        assert found == {"resting/heads": 0.0}
    assert dict(written_on_the_sink(null_model(), {}, math.nan, 4)) == {}
