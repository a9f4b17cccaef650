"""Whether a head writes less on the sink: planted weights and norms, and a planted model."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sinkscope.experiments.observing.no_op import QUERIES, ratios, written_on_the_sink
from tests.planted.factory import NULL, null_model, planted_ids, planted_model
from tests.planted.plant import Plant


def planted(on: float = 0.9, off: float = 0.1, count: int = 2 * QUERIES) -> tuple[np.ndarray, np.ndarray]:
    """Two layers of three heads; in head (1, 0) every second query is on the sink, and writes a quarter there."""
    weights = np.full((1, 2, 3, count), 0.5)
    weights[0, 1, 0] = np.where(np.arange(count) % 2, on, off)
    norms = np.ones((1, 2, 3, count))
    norms[0, 1, 0, 1::2] = 0.25
    norms[0, 1, 1, 1::2] = 0.8  # a control that differs between the queries as well
    return weights, norms


def test_a_head_is_compared_with_itself_and_with_its_layer() -> None:
    ((own, controls),) = ratios(*planted())
    assert own == pytest.approx(0.25)
    assert controls == pytest.approx((0.8 + 1.0) / 2)


@pytest.mark.parametrize("weights", [{"on": 0.8}, {"off": 0.2}, {"count": 2 * QUERIES - 2}])
def test_a_head_without_enough_queries_of_both_kinds_is_left_out(weights) -> None:
    assert ratios(*planted(**weights)) == []


def test_a_planted_head_is_always_on_its_sink_so_nothing_can_be_compared() -> None:
    for model, plant in ((planted_model(Plant(heads=((1, 0),))), Plant(heads=((1, 0),))), (null_model(), NULL)):
        found = dict(written_on_the_sink(model, {"input_ids": planted_ids(plant, samples=4, tokens=40)}, 0.0, 4))
        assert found == {"written/heads": 0.0}
    assert dict(written_on_the_sink(null_model(), {}, math.nan, 4)) == {}
