"""A study warns where what was calibrated is not what is served, and is silent where it is."""

from __future__ import annotations

import warnings

import pytest

from sinkscope.quantization import Grid, Positions, QuantizeLinear, SmoothQuant, calibrated, study
from tests.planted.factory import Plant, planted_ids
from tests.quantization.studies.quantizers import by_channel, by_token

SINK = Positions((0,))
EIGHT = Grid(8, "tensor", symmetric=True)
WEIGHTS = Grid(8, symmetric=True)


def test_smoothing_without_the_sink_that_is_served_is_said() -> None:
    model, ids = by_token(rows=6)
    smooth = SmoothQuant.of(model, ids, spared=SINK)
    with pytest.warns(
        UserWarning, match="SmoothQuant was calibrated with Positions left out, and in 'nothing' no token"
    ):
        study(model, ids, QuantizeLinear(WEIGHTS, EIGHT, transform=smooth), SINK, controls=2)


def test_a_range_that_is_frozen_on_the_spared_token_is_said() -> None:
    model, ids = by_token(rows=6)
    static = calibrated(model, ids, EIGHT)
    with pytest.warns(UserWarning, match="Static was calibrated with no token left out, and in 'spared' Positions is"):
        study(model, ids, QuantizeLinear(WEIGHTS, EIGHT, static=static), SINK, controls=2)


def test_texts_without_the_sink_that_is_served_are_said() -> None:
    model, ids = by_token(rows=6)
    others = planted_ids(Plant(sinks=(), dimension=7), 6, 32)
    with pytest.warns(
        UserWarning, match=r"reaches \d+ times as far as what was calibrated on \(block 1, into down, col"
    ):
        study(model, ids, "w8a8-static", SINK, controls=2, calibration=others)
    with pytest.warns(
        UserWarning, match=r"what was calibrated on reaches \d+ times as far as what is served \(block 1, into down"
    ):
        study(model, others, "w8a8-static", SINK, controls=2, calibration=ids)


@pytest.mark.slow
def test_schemes_agree_with_themselves() -> None:
    model, ids = by_token(rows=6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for scheme in ("w8a8-static", "w8a8-tensor-smooth"):
            found = study(model, ids, scheme, SINK, controls=2)
        study(model, ids, "w8a8-static", SINK, controls=2, calibration=planted_ids(Plant(dimension=7), 6, 32))
    assert found.choices == ["spared"]


@pytest.mark.slow
def test_outlying_channels_are_smoothings_work() -> None:
    model, ids = by_channel(rows=6)
    plain = study(model, ids, "w8a8-tensor", SINK, controls=2)
    smooth = study(model, ids, "w8a8-tensor-smooth", SINK, controls=2)
    assert plain.recovered("spared", by="kl").value < 0.05
    assert smooth.cost("nothing", by="kl").value < 0.1 * plain.cost("nothing", by="kl").value
