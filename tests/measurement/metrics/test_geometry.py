"""Angles, components, separation and alignment: planes of known angle, loops over points, planted sinks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sinkscope.errors import InputError
from sinkscope.measurement import HiddenNorms, measure
from sinkscope.measurement.metrics.geometry import principal_angles, principal_components, secondary_sinks, separation
from sinkscope.measurement.observers.geometry import HiddenSimilarity, HiddenVectors
from tests.planted.factory import Plant, null_model, planted_ids, planted_model


def rotation(width: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(0).normal(size=(width, width)))[0]


@pytest.mark.parametrize("angles", [(0.0, 0.0), (0.3, 1.2), (1e-7, math.pi / 2), (0.0, 1.0), (0.7, 0.8)])
def test_planes_have_the_angles_they_were_turned_by(angles: tuple[float, float]) -> None:
    """a spans e0, e1; b spans cos·e0 + sin·e2, cos·e1 + sin·e3: whatever vectors of them are given."""
    generator, turn = np.random.default_rng(1), rotation(9)
    plane = np.zeros((2, 9))
    for axis, angle in enumerate(angles):
        plane[axis, axis], plane[axis, axis + 2] = math.cos(angle), math.sin(angle)
    one = generator.normal(size=(5, 2)) @ np.eye(9)[:2] @ turn
    other = generator.normal(size=(7, 2)) @ plane @ turn
    for a, b in ((one, other), (other, one)):
        found = principal_angles(a, b, 2)
        np.testing.assert_allclose(found, angles, atol=1e-9)


def test_subspaces_are_those_of_the_strongest_directions() -> None:
    generator = np.random.default_rng(0)
    strong, weak = np.eye(6)[:2] * 100, np.eye(6)[2:]
    points = generator.normal(size=(40, 2)) @ strong + generator.normal(size=(40, 4)) @ weak
    assert np.abs(principal_angles(points, strong, 2)).max() < 0.05
    assert principal_angles(points, weak, 2).min() > 1.5


def test_a_set_that_spans_less_has_fewer_angles() -> None:
    line, plane = np.array([[1.0, 1.0, 0.0]]), np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [2.0, 0.0, 1.0]])
    for a, b in ((line, plane), (plane, line)):
        found = principal_angles(a, b, 3)
        assert found[0] == pytest.approx(math.pi / 4)
        assert np.isnan(found[1:]).all()
        assert len(found) == 3
    assert np.isnan(principal_angles(np.full((2, 3), np.nan), plane)).all()
    unmeasured = np.concatenate([line, np.full((2, 3), np.nan)])
    assert principal_angles(unmeasured, plane)[0] == pytest.approx(math.pi / 4)
    assert np.isnan(principal_angles(line * 0, plane)).all()


def test_angles_of_nothing_or_of_different_widths_are_refused() -> None:
    with pytest.raises(InputError, match="0 dimensions"):
        principal_angles(np.eye(3), np.eye(3), 0)
    with pytest.raises(InputError, match="width 3 and 4"):
        principal_angles(np.eye(3), np.eye(4))


def test_components_are_eigenvectors_of_the_covariance() -> None:
    generator = np.random.default_rng(0)
    points = generator.normal(size=(30, 5)) * [5, 1, 3, 0.1, 0.2] @ rotation(5) + 7
    found = principal_components(points, 3)
    values, vectors = np.linalg.eigh(np.cov(points.T))
    np.testing.assert_allclose(found.shares, values[::-1][:3] / values.sum())
    for component in range(3):
        scores = (points - points.mean(0)) @ vectors[:, 4 - component]
        np.testing.assert_allclose(np.abs(found.points[:, component]), np.abs(scores), atol=1e-9)
        assert found.points[np.abs(scores).argmax(), component] > 0


def test_components_pass_over_what_was_not_measured() -> None:
    points = np.array([[0.0, 0.0, 1.0], [np.nan] * 3, [4.0, 0.0, 1.0]])
    found = principal_components(points, 2)
    np.testing.assert_allclose(np.abs(found.points), [[2, 0], [np.nan, np.nan], [2, 0]])
    np.testing.assert_allclose(found.shares, [1, 0])
    assert np.isnan(principal_components(np.full((2, 3), np.nan)).points).all()
    assert (principal_components(np.ones((3, 2))).shares == 0).all()


def test_separation_is_the_mean_silhouette_of_the_group() -> None:
    vectors = np.random.default_rng(0).normal(size=(4, 3, 5))
    vectors[:, 1] += 1.5
    vectors[3, 2] = np.nan
    scores = []
    for sample in range(4):
        point = vectors[sample, 1]
        own = [math.dist(point, vectors[other, 1]) for other in range(4) if other != sample]
        rest = [math.dist(point, vectors[other, position]) for other in range(4) for position in (0, 2)]
        within, outside = np.mean(own), np.nanmean(rest)
        scores.append((outside - within) / max(within, outside))
    assert separation(vectors, 1) == pytest.approx(np.mean(scores))
    assert 0 < np.mean(scores) < 1


def test_separation_has_its_extremes_and_needs_points() -> None:
    apart = np.zeros((3, 2, 4))
    apart[:, 0, 0] = 1
    assert separation(apart, 0) == 1
    assert separation(np.zeros((3, 2, 4)), 0) == 0
    assert math.isnan(separation(apart[:1], 0)), "one point of the group"
    assert math.isnan(separation(apart[:, :1], 0)), "no point outside"


@pytest.mark.parametrize("sink", [0, 7])
def test_the_states_of_a_planted_sink_stand_apart(sink: int) -> None:
    """Principal components separate the sink's position, silhouette above 0."""
    plant = Plant(sinks=(sink,), onset=2)
    data = measure(planted_model(plant), planted_ids(plant), [HiddenVectors(positions=range(16))]).data
    vectors = data["hidden_vectors"].values
    for depth in range(2, 5):
        assert separation(vectors[:, depth], sink) > 0.9
        found = principal_components(vectors[:, depth].reshape(-1, 64))
        first = found.points[:, 0].reshape(4, 16)
        others = np.delete(first, sink, axis=1)
        assert first[:, sink].min() - others.max() > 100 * np.ptp(others)
        assert found.shares[0] > 0.99


def test_without_a_plant_no_position_stands_apart() -> None:
    data = measure(null_model(), planted_ids(Plant(sinks=()), 16), [HiddenVectors(16, range(16))]).data
    for depth in range(5):
        for position in range(16):
            assert separation(data["hidden_vectors"].values[:, depth], position) < 0.1
        assert principal_components(data["hidden_vectors"].values[:, depth].reshape(-1, 64)).shares[0] < 0.3


@pytest.mark.parametrize(("onset", "decay"), [(0, None), (1, None), (2, 4), (1, 3)])
def test_a_planted_second_sink_is_found_between_jump_and_drop(onset: int, decay: int | None) -> None:
    plant = Plant(sinks=(0, 9), onset=onset, decay=decay)
    data = measure(planted_model(plant), planted_ids(plant), [HiddenNorms(), HiddenSimilarity()]).data
    # The second one is in the mean of the others: the ratio peaks at 31 for 32 tokens.
    found = secondary_sinks(data["cos_hidden_first"].values, data["hidden_norm"].values)
    assert (found.jump == onset).all()
    assert (found.drop == (decay or 5) - 1).all()
    assert [set(np.flatnonzero(row)) for row in found.found] == [{9}] * 4
    assert (found.share[:, 9] == 1).all()


@pytest.mark.parametrize("plant", [Plant(sinks=()), Plant(sinks=(0,)), Plant(sinks=(0,), onset=2)])
def test_there_is_no_second_sink_where_none_was_planted(plant: Plant) -> None:
    model = planted_model(plant) if plant.sinks else null_model()
    data = measure(model, planted_ids(plant), [HiddenNorms(), HiddenSimilarity()]).data
    found = secondary_sinks(data["cos_hidden_first"].values, data["hidden_norm"].values)
    assert not found.found.any()
    assert np.isnan(found.jump).all() == (not plant.sinks)


def test_jump_and_drop_are_half_of_the_largest_ratio_and_thresholds_are_strict() -> None:
    """The first token's norm by depth against others of norm 1, and the cosine of the second token."""
    norms = np.ones((1, 7, 3))
    norms[0, :, 0] = [1, 5, 5.1, 10, 4, 6, 2]
    cosines = np.zeros((1, 7, 3))
    cosines[0, :, 0] = 1
    cosines[0, :, 1] = [1, 1, 0.95, -0.95, 0.9, 0.2, 1]
    found = secondary_sinks(cosines, norms)
    assert (found.jump, found.drop) == (2, 5)
    assert found.share.tolist() == [[0, 0.5, 0]]
    assert secondary_sinks(cosines, norms, threshold=0.85).share[0, 1] == 0.75
    assert np.isnan(secondary_sinks(cosines, norms, least=10.0).jump).all()
    with pytest.raises(InputError, match="threshold = 1"):
        secondary_sinks(cosines, norms, threshold=1.5)
