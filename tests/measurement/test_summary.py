from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import sinkscope as ss
from sinkscope.measurement.summary import BANDS, WITHIN, layer_bands


def layers(*rates: float) -> pd.DataFrame:
    return pd.DataFrame({"stack": "decoder", "layer": range(len(rates)), "sink_rate": rates})


def test_layers_whose_rates_are_alike_are_one_band():
    """Those of SmolLM2: nothing, a sink, its collapse, a sink again."""
    found = layer_bands(layers(1, 0, 40, *[97, 88] * 4, 9, 0, *[94, 79, 100] * 6))
    assert [str(band) for band in found] == [
        "0–1: at most 1 %",
        "2: 40 %",
        "3–10: 88–97 %",
        "11–12: at most 9 %",
        "13–30: 79–100 %",
    ]


@pytest.mark.parametrize("depth", [1, 2, 30, 200])
def test_bands_are_few_and_cover_every_layer_once(depth: int):
    rates = np.random.default_rng(0).uniform(0, 100, depth)
    found = layer_bands(layers(*rates))
    assert len(found) <= BANDS
    covered = [layer for band in found for layer in range(band.first, band.last + 1)]
    assert covered == list(range(depth))
    for band in found:
        inside = rates[band.first : band.last + 1]
        assert (band.low, band.high) == (inside.min(), inside.max())


def test_bands_that_are_wider_are_made_only_where_there_are_too_many():
    rates = [0, 100] * 3
    assert all(band.high - band.low <= WITHIN for band in layer_bands(layers(*rates)))


def test_a_layer_without_a_number_is_in_no_band():
    assert [str(band) for band in layer_bands(layers(float("nan"), 50.2))] == ["1: 50 %"]


@pytest.mark.slow
def test_the_summary_says_what_the_measurement_says(tiny_llama: torch.nn.Module):
    m = ss.measure(tiny_llama, torch.arange(2 * 24).reshape(2, 24), observers="all")
    found = m.summary()
    assert len(found.lines()) <= 30
    (rate,) = found.rates.values()
    assert rate[0] == pytest.approx(m.sink_rate(position=0))
    assert sum(found.kinds.values()) == 8
    assert [head["alpha"] for head in found.strongest] == sorted(m.heads()["alpha"], reverse=True)[:5]
    assert found.to_json()["rates"] == {stack: list(rate) for stack, rate in found.rates.items()}
    assert m.to_json()["answer"] == found.to_json()
    alone = ss.measure(tiny_llama, torch.arange(24)[None]).to_json()["answer"]
    assert alone["rates"]["decoder"][1:] == [None, None], "of one text there is no interval"
    assert str(found).splitlines() == found.lines()
