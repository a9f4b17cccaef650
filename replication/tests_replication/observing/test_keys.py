"""Whether the sink's key lies apart: a planted sink, whose key does, and a model without one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sinkscope.measurement import PER_HEAD, AttentionReceived, KeyVectors, measure
from sinkscope.measurement.metrics import key_angles, key_manifold
from sinkscope_replication.observing.keys import keys_apart
from tests.planted.factory import NULL, null_model, planted_ids, planted_model
from tests.planted.plant import Plant


def found(model, plant: Plant, position: float, samples: int = 4) -> dict[str, float]:
    text = {"input_ids": planted_ids(plant, samples=samples, tokens=40)}
    measured = measure(model, text, [AttentionReceived("all")])
    return dict(keys_apart(model, text, measured, position, 2))


def test_the_key_of_a_planted_sink_lies_apart_and_those_of_other_tokens_do_not() -> None:
    for plant in (Plant(heads=((1, 0),)), Plant(heads=((2, 3),), sinks=(7,))):
        apart = found(planted_model(plant), plant, float(plant.sinks[0]))
        assert apart["key_angle"] > 1.2
        assert apart["key_angle"] > 1.25 * apart["key_angle/others"]
    null = found(null_model(), NULL, 0.0)
    assert null["key_angle"] < 1.25 * null["key_angle/others"]


def test_the_head_is_the_one_that_gives_the_sink_the_most_attention() -> None:
    plant = Plant(heads=((2, 1),))
    model, text = planted_model(plant), {"input_ids": planted_ids(plant, samples=3, tokens=40)}
    seen = measure(model, text, [AttentionReceived("all"), KeyVectors(3, range(40))]).data
    at_first = seen["attention_received"].transpose(*PER_HEAD).values[..., 0].mean(0)
    assert np.unravel_index(at_first.argmax(), at_first.shape) == (2, 1)
    keys = seen["key_vectors"].transpose("kept", "layer", "head", "kept_position", "key_dim").values
    one = key_manifold(keys[:, 2:3, 1:2], 0)
    told = found(model, plant, 0.0, samples=3)
    assert told["key_angle"] == pytest.approx((one.angle / one.chance).item(), rel=1e-5)


def test_every_position_is_in_turn_what_the_sink_is() -> None:
    """Of a position whose key is constant it is the angle of `key_manifold`; of others each key counts by itself."""
    draw = np.random.default_rng(0)
    keys = np.zeros((4, 6, 8))
    keys[..., :4] = draw.normal(size=(4, 6, 4))  # half of the space
    keys[:, 2] = [0, 0, 0, 0.6, 0.8, 0, 0, 0]
    angles = key_angles(keys, dims=4)
    one = key_manifold(keys[:, None, None], 2, dims=4)
    assert angles[2] == pytest.approx((one.angle / one.chance).item())
    assert angles[2] == pytest.approx(math.asin(0.8) / math.acos(math.sqrt(0.5)))
    assert angles[2] > 2 * np.delete(angles, 2).max()
    keys[:, 5] = math.nan
    assert np.isnan(key_angles(keys, dims=4)).tolist() == [False] * 5 + [True]


def test_random_keys_are_at_a_random_direction_s_angle() -> None:
    angles = key_angles(np.random.default_rng(1).normal(size=(400, 8, 32)))
    assert angles == pytest.approx(np.ones(8), abs=0.03)


def test_without_a_sink_there_is_nothing_to_say() -> None:
    assert dict(keys_apart(null_model(), {}, None, math.nan, 2)) == {}
