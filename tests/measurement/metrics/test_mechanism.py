"""What a head does with its sink: hand-made numbers, and plants whose mechanism is known."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from sinkscope.errors import InputError
from sinkscope.measurement import AttentionReceived, QueryKeyAngles, QueryKeyValueNorms, measure, metrics
from sinkscope.measurement.metrics import key_manifold, key_planes
from sinkscope.measurement.metrics.geometry import key_angles
from sinkscope.measurement.metrics.mechanism import (
    angle_split,
    dormant,
    head_kinds,
    value_drain_correlation,
    value_ratio,
)
from sinkscope.measurement.observers.kept import KeyVectors
from sinkscope.measurement.observers.outputs import HeadOutputs
from tests.planted.factory import NULL, Plant, null_model, planted_ids, planted_model

OBSERVERS = [
    AttentionReceived(),
    QueryKeyAngles(),
    QueryKeyValueNorms(),
    HeadOutputs(),
    KeyVectors(4, tuple(range(32))),
]
NAN = float("nan")


@pytest.fixture(scope="module")
def looked() -> dict[str, xr.Dataset]:
    """Plants by name; the sink is at position 0 unless the name says otherwise."""
    plants = {
        "drained": Plant(),
        "broadcast": Plant(value="broadcast"),
        "moderate": Plant(massive=False),
        "elsewhere": Plant(sinks=(7,)),
        "one head": Plant(heads=((2, 1),)),
        "null": NULL,
    }
    return {
        name: measure(planted_model(plant) if plant.sinks else null_model(), planted_ids(plant), OBSERVERS).data
        for name, plant in plants.items()
    }


def kinds(data: xr.Dataset, position: int = 0) -> np.ndarray:
    return head_kinds(
        data["attention_received"].values, data["value_norm"].values, data["output_rank_one"].values, position
    )


@pytest.mark.slow
def test_no_op_and_broadcast_heads_are_told_apart(looked: dict[str, xr.Dataset]) -> None:
    assert set(kinds(looked["drained"])[1:].ravel()) == {"no-op"}
    assert set(kinds(looked["broadcast"])[1:].ravel()) == {"broadcast"}
    assert set(kinds(looked["elsewhere"], 7)[1:].ravel()) == {"no-op"}
    for name in ("drained", "broadcast", "elsewhere"):
        assert set(kinds(looked[name])[0]) == {"active"}, "the entry is written by the first block"
    assert set(kinds(looked["null"]).ravel()) == {"active"}
    assert set(kinds(looked["elsewhere"], 0).ravel()) == {"active"}
    one = kinds(looked["one head"])
    assert one[2, 1] == "no-op"
    assert (one == "active").sum() == one.size - 1


def test_kinds_from_numbers() -> None:
    received = np.array([[[[0.5, 0.1], [0.5, 0.1], [0.5, 0.1], [0.2, 0.1], [NAN, NAN]]]])
    values = np.array([[[[0.2, 1.0], [0.3, 1.0], [0.3, 1.0], [0.1, 1.0], [NAN, NAN]]]])
    rank_one = np.array([[[0.9, 0.9, 0.7, 0.9, NAN]]])
    assert head_kinds(received, values, rank_one).tolist() == [["no-op", "broadcast", "active", "active", ""]]
    assert head_kinds(received, values, rank_one, drained=0.5)[0, 1] == "no-op"
    assert head_kinds(received, values, rank_one, rank_one=0.6)[0, 2] == "broadcast"
    assert head_kinds(received, values, rank_one, epsilon=0.15)[0, 3] == "no-op"


def test_a_drained_sink_correlates_negatively_and_the_null_model_does_not(looked: dict[str, xr.Dataset]) -> None:
    found = {
        name: value_drain_correlation(data["attention_received"].values, data["value_norm"].values)
        for name, data in looked.items()
    }
    # Only one of 32 tokens differs, so the correlation itself is weak; at the sink both ranks are the extreme ones.
    assert found["drained"][:, 1:].mean() < found["null"][:, 1:].mean() - 0.05
    assert found["drained"][:, 1:].mean() < 0
    received, norms = (np.array([[[[0.9, 0.05, 0.03, 0.02]]]]), np.array([[[[0.1, 2.0, 3.0, 4.0]]]]))
    assert float(value_drain_correlation(received, norms)[0, 0, 0]) == pytest.approx(-1)


def test_the_values_of_a_drained_sink_are_small(looked: dict[str, xr.Dataset]) -> None:
    assert value_ratio(looked["drained"]["value_norm"].values)[:, 1:].max() < 0.02
    assert value_ratio(looked["broadcast"]["value_norm"].values)[:, 1:].min() > 0.4
    np.testing.assert_allclose(value_ratio(np.array([[[[1.0, 2, 4]]]])), [[[1 / 3]]])
    np.testing.assert_allclose(value_ratio(np.array([[[[1.0, 2, 4]]]]), 2), [[[4 / 1.5]]])


@pytest.mark.parametrize(("name", "position"), [("drained", 0), ("broadcast", 0), ("elsewhere", 7)])
def test_the_angle_makes_a_planted_sink(name: str, position: int, looked: dict[str, xr.Dataset]) -> None:
    data = looked[name]
    split = angle_split(*(data[part].values for part in ("cos_query_key", "key_norm", "query_norm")), position=position)
    assert split.cos_sink[1:].min() > 0.95
    assert np.abs(split.cos_others[1:]).max() < 0.1
    assert (split.key_sink[1:] / split.key_others[1:]).max() < 1.6
    assert np.abs(split.cos_sink[0]).max() < 0.5, "the entry is written by the first block"


def test_the_parts_of_the_split_are_the_means_that_they_say() -> None:
    cosines = np.array([[[[0.9, 0.1, 0.3, NAN]]], [[[0.7, 0.2, 0.2, 0.5]]]])
    keys, queries = 10 * cosines, np.array([[[[5.0, 1, 3, NAN]]], [[[9.0, 4, 4, 4]]]])
    split = angle_split(cosines, keys, queries)
    assert float(split.cos_sink[0, 0]) == pytest.approx(0.8)
    assert float(split.cos_others[0, 0]) == pytest.approx((0.2 + 0.3) / 2)
    assert float(split.key_sink[0, 0]) == pytest.approx(8)
    assert float(split.key_others[0, 0]) == pytest.approx(2.5)
    assert float(split.query[0, 0]) == pytest.approx(3)
    assert float(angle_split(cosines, keys, queries, 2).cos_sink[0, 0]) == pytest.approx(0.25)


def test_on_the_null_model_no_angle_stands_out(looked: dict[str, xr.Dataset]) -> None:
    data = looked["null"]
    split = angle_split(*(data[part].values for part in ("cos_query_key", "key_norm", "query_norm")))
    assert np.abs(split.cos_sink).max() < 0.4
    assert np.abs(split.cos_sink - split.cos_others).max() < 0.4


def test_dormant_heads_write_little_beside_their_layer(looked: dict[str, xr.Dataset]) -> None:
    norms = np.ones((2, 2, 4, 5))
    norms[:, 1, 2] = 0.05
    norms[:, 0, 3] = NAN
    assert np.argwhere(dormant(norms)).tolist() == [[1, 2]]
    assert not dormant(norms, 0.05).any()
    found = dormant(looked["one head"]["output_norm"].values, 0.6)
    assert np.argwhere(found).tolist() == [[2, 1]]
    assert not dormant(looked["null"]["output_norm"].values, 0.6).any()


def test_a_planted_key_lives_on_another_manifold(looked: dict[str, xr.Dataset]) -> None:
    for name, position in (("drained", 0), ("broadcast", 0), ("elsewhere", 7)):
        found = key_manifold(looked[name]["key_vectors"].values, position, dims=8)
        assert found.angle[1:].min() > 1.3
        assert np.abs(found.cosine[1:]).max() < 0.3
        assert (found.angle[1:] > found.chance[1:] + 0.4).all()
    null = key_manifold(looked["null"]["key_vectors"].values, 0, dims=8)
    assert (null.angle < null.chance + 0.4).all()
    assert null.angle.mean() < found.angle[1:].mean() - 0.3


def test_heads_of_unequal_width_and_absent_heads() -> None:
    generator = np.random.default_rng(0)
    keys = np.full((3, 1, 3, 5, 8), NAN)
    keys[:, 0, 0] = generator.normal(size=(3, 5, 8))
    keys[:, 0, 1, :, :4] = generator.normal(size=(3, 5, 4))
    found = key_manifold(keys, 0, dims=2)
    narrow = key_manifold(keys[:, :, 1:2, :, :4], 0, dims=2)
    assert found.angle[0, 1] == narrow.angle[0, 0]
    assert found.chance[0, 1] == pytest.approx(np.pi / 4)
    assert np.isnan([found.angle[0, 2], found.cosine[0, 2]]).all()
    assert np.isnan(key_planes(keys)[0][2].points).all()


def test_an_angle_and_a_cosine_that_are_known() -> None:
    keys = np.zeros((2, 1, 1, 3, 8))
    keys[..., 0, :2] = [np.cos(0.7), np.sin(0.7)]
    keys[..., 1, 0], keys[..., 2, 0] = 5, 2
    found = key_manifold(keys)
    assert found.angle[0, 0] == pytest.approx(0.7)
    chance = np.arccos(np.sqrt(1 / 8))  # the others, as many as there are, lie on one line
    assert found.chance[0, 0] == pytest.approx(chance)
    assert key_angles(keys[:, 0, 0])[0] == pytest.approx(0.7 / chance)
    assert np.isnan(key_angles(keys[:, 0, 0] * np.array([1, 0, 0])[:, None])[0])  # only others of length 0
    assert found.cosine[0, 0] == pytest.approx(np.cos(0.7))
    points = key_planes(keys)[0][0].points.reshape(2, 3, 2)
    np.testing.assert_allclose(points[0], points[1], atol=1e-12)
    distances = np.linalg.norm(points[0][:, None] - points[0][None], axis=-1)
    keys = keys[0, 0, 0]
    np.testing.assert_allclose(distances, np.linalg.norm(keys[:, None] - keys[None], axis=-1), atol=1e-12)


@pytest.mark.parametrize("position", [-1, 5])
def test_positions_that_were_not_measured_are_refused(position: int) -> None:
    values = np.ones((1, 1, 1, 5))
    for wrong in (
        lambda: value_ratio(values, position),
        lambda: angle_split(values, values, values, position),
        lambda: head_kinds(values, values, np.ones((1, 1, 1)), position),
        lambda: key_manifold(np.ones((1, 1, 1, 5, 2)), position),
    ):
        with pytest.raises(InputError, match="was not measured; measured: "):
            wrong()


def test_thresholds_that_are_no_shares_are_refused() -> None:
    values = np.ones((1, 1, 1, 5))
    for wrong in (
        lambda: dormant(values, 1.0),
        lambda: head_kinds(values, values, np.ones((1, 1, 1)), drained=0.0),
        lambda: head_kinds(values, values, np.ones((1, 1, 1)), epsilon=2.0),
    ):
        with pytest.raises(InputError, match="between 0 and 1"):
            wrong()


def test_a_head_is_dormant_beside_the_heads_of_its_own_layer() -> None:
    output = np.ones((3, 2, 4, 6))
    output[:, 0] = 100.0  # a loud layer makes none of a quiet one's heads dormant
    output[:, 1, 3] = 0.01
    assert np.argwhere(metrics.dormant(output)).tolist() == [[1, 3]]


def test_angles_elsewhere_leave_out_the_sink_wherever_it_is() -> None:
    cosine, key, query = (np.full((1, 1, 1, 5), value) for value in (0.1, 2.0, 3.0))
    cosine[..., 2], key[..., 2], query[..., 2] = 0.9, 50.0, 70.0
    found = metrics.angle_split(cosine, key, query, position=2)
    assert float(found.cos_sink[0, 0]) == pytest.approx(0.9)
    assert float(found.cos_others[0, 0]) == pytest.approx(0.1)
    assert (float(found.key_sink[0, 0]), float(found.key_others[0, 0])) == (50.0, 2.0)
    assert float(found.query[0, 0]) == 3.0
