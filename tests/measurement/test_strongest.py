"""The strongest position: one rule, wherever it is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from sinkscope.experiments.readings import strongest_metrics as readings
from sinkscope.measurement import (
    Measurement,
    Strongest,
    comparable_rates,
    rates_by_position,
    strongest_by_layer,
    strongest_position,
)
from sinkscope.measurement.figures import sink_rate_by_position
from sinkscope.measurement.metrics import comparable, strongest
from sinkscope.measurement.models.rows import measured_row
from sinkscope.measurement.models.subjects import SurveyModel
from sinkscope.report.observatory import observatory_page
from sinkscope.report.writing import compose
from sinkscope.theme import BLUE, SINK
from sinkscope.training.sink import sink_metrics
from tests.measurement.planted import PER_HEAD

SAMPLES, LAYERS, HEADS, TOKENS = 3, 2, 2, 64


def planted(
    received: np.ndarray, stacks: tuple[str, ...] = ("decoder", "decoder"), tokens: int = TOKENS
) -> Measurement:
    """A measurement of attention received, with norms that say nothing."""
    samples, layers, _, positions = received.shape
    ones = np.ones((samples, layers + 1, positions))
    data = xr.Dataset(
        {
            "attention_received": (PER_HEAD, received),
            "value_norm": (PER_HEAD, np.ones_like(received)),
            "hidden_norm": (("sample", "depth", "position"), ones),
            "tokens": (("sample", "layer"), np.full((samples, layers), tokens)),
        },
        coords={
            "position": range(positions),
            "layer_index": ("layer", list(range(layers))),
            "stack": ("layer", list(stacks)),
            "depth_index": ("depth", list(range(layers + 1))),
            "depth_stack": ("depth", [stacks[0]] * (layers + 1)),
        },
    )
    record = {
        "model": "planted",
        "family": "llama",
        "parameters": 1,
        "samples": samples,
        "tokens": tokens,
        "metric_weights": ["raw"],
        "input": {"description": "planted"},
        "versions": {},
    }
    return Measurement(data.assign_attrs(record=json.dumps(record)))


def late_sink() -> np.ndarray:
    """One head in four looks at position 3; every head's position 62, which two queries see, gets half of theirs."""
    received = np.full((SAMPLES, LAYERS, HEADS, TOKENS), 0.01)
    received[:, 1, 1, 3] = 0.8
    received[..., 62] = 0.5
    return received


def colors(figure: object) -> dict[str, list[int]]:
    found = figure.data[0].marker.color
    return {name: [index for index, color in enumerate(found) if color == name] for name in (SINK, BLUE)}


@pytest.mark.slow
def test_no_place_calls_a_position_that_two_queries_see_the_strongest(tmp_path: Path) -> None:
    found = planted(late_sink())
    assert strongest_position(found.data, 0.3) == Strongest(3, 25.0)
    assert sink_metrics(found)["sink/strongest_position"] == 3
    assert dict(readings(found))["strongest_position"] == 3.0
    row = measured_row(SurveyModel("planted", "planted"), "natural", found, 0.3, 1.0, "")
    assert (row.strongest_position, row.strongest_rate) == (3, 25.0)
    assert found.table()["strongest_position"].tolist()[1] == 3
    assert "position 3" in {card.value for card in observatory_page(found, "x", 0.3).headlines}
    found.save(tmp_path / "m.nc")
    [composed] = [part for part in compose([tmp_path / "m.nc"]).sections if part.title == "Sink rate, per position"]
    [figure] = composed.figures.values()
    for drawn in (figure, found.plot(), sink_rate_by_position(rates_by_position(found.data, 0.3))):
        assert colors(drawn) == {SINK: [3], BLUE: [k for k in range(32) if k != 3]}


def test_what_most_queries_see_is_what_the_docstring_says() -> None:
    for tokens in (1, 2, 5, 64, 65):
        allowed = comparable(np.arange(tokens, 0, -1.0)[None], np.array([tokens]))[0]
        assert allowed.tolist() == [tokens - k > tokens / 2 for k in range(tokens)]
    seen = np.array([[3, 3, 3, np.nan, np.nan]])
    assert comparable(seen, np.array([3])).tolist() == [[True] * 3 + [False] * 2]


def test_equal_rates_are_told_apart_by_attention_and_then_by_order() -> None:
    rates = np.array([50.0, 50.0 + 1e-9, 20.0, np.nan])
    assert strongest(rates, np.array([0.1, 0.3, 0.9, 0.9])) == 1
    assert strongest(rates, np.array([0.3, 0.3 - 1e-9, 0.9, 0.9])) == 0
    assert strongest(rates, np.full(4, np.nan)) == 0
    assert strongest(np.full(4, np.nan), np.ones(4)) is None


def test_without_a_sink_the_mass_decides_and_not_the_mean_of_a_few() -> None:
    received = np.broadcast_to(1 / (TOKENS - np.arange(TOKENS)), (1, 2, 1, TOKENS)).copy()
    received[..., 40:] = 0.25  # each token sees itself alone, up to where the sum of a few would exceed 0.3
    assert strongest_position(planted(received).data, 0.3) == Strongest(0, 0.0)
    received[..., 7] += 0.01
    assert strongest_position(planted(received).data, 0.3) == Strongest(7, 0.0)


def test_where_nothing_can_be_compared_nothing_is_the_strongest() -> None:
    late = planted(late_sink())
    late = Measurement(late.data[["attention_received", "tokens"]].isel(position=slice(40, 64)))
    assert strongest_position(late.data, 0.3) is None
    assert late.table()["strongest_position"].isna().all()
    assert not rates_by_position(late.data, 0.3)["strongest"].any()
    broken = planted(np.full((2, 2, 2, TOKENS), np.nan))
    assert strongest_position(broken.data, 0.3) is None
    assert np.isnan(sink_metrics(broken)["sink/strongest_position"])
    assert np.isnan(dict(readings(broken))["strongest_position"])
    row = measured_row(SurveyModel("planted", "planted"), "natural", broken, 0.3, 1.0, "")
    assert (row.strongest_position, row.strongest_rate) == (None, None)
    assert [card.value for card in observatory_page(broken, "x", 0.3).headlines if "strongest" in card.label] == [
        "unknown"
    ]


def test_bidirectional_layers_have_no_late_positions() -> None:
    assert strongest_position(planted(late_sink(), ("encoder", "encoder")).data, 0.3) == Strongest(62, 100.0)
    mixed = planted(late_sink(), ("encoder", "decoder"))
    assert strongest_by_layer(mixed.data, 0.3) == [Strongest(62, 100.0), Strongest(3, 50.0)]


def test_a_short_row_does_not_lend_its_end_to_the_long_ones() -> None:
    data = planted(late_sink()).data.copy(deep=True)
    data["tokens"][0] = 10
    data["attention_received"][0, :, :, 10:] = np.nan
    data["attention_received"][0, :, :, 8] = 0.9
    rates = comparable_rates(data, 0.3)
    assert rates[8] == 0.0, "in the short row most queries do not see it"
    assert strongest_position(data, 0.3) == Strongest(3, 25.0)


@pytest.mark.parametrize("epsilon", [0.1, 0.3])
def test_position_0_has_the_same_rate_by_either_way(epsilon: float) -> None:
    received = np.random.default_rng(0).uniform(0, 0.6, (SAMPLES, LAYERS, HEADS, TOKENS))
    found = planted(received)
    assert comparable_rates(found.data, epsilon)[0] == found.sink_rate(epsilon, 0)
