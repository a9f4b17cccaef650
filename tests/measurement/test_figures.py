import json

import numpy as np
import pandas as pd
import pytest

from sinkscope.errors import InputError
from sinkscope.measurement.figures import attention_received, plot, sink_rate_by_input, sink_rate_by_position

RATES = {"sink_rate": [10.0, 1.0], "low": [8.0, 0.5], "high": [13.0, 2.0]}


def test_the_map_shows_the_sample_mean_per_layer_and_head(dataset):
    heat = attention_received(dataset).data[0]
    expected = dataset["attention_received"].sel(position=0).mean("sample").values
    np.testing.assert_allclose(heat.z, expected, rtol=1e-6)
    assert heat.z[2][1] == pytest.approx(0.75)
    assert list(heat.x) == ["0", "1"]
    assert list(heat.y) == ["0", "1", "2"]


def test_cells_above_the_threshold_change_hue_at_the_threshold(dataset):
    scale = attention_received(dataset, epsilon=0.4).layout.coloraxis.colorscale
    assert [step[0] for step in scale] == [0, 0.4, 0.4, 1]


def test_the_slider_leads_to_every_position(dataset):
    steps = attention_received(dataset).layout.sliders[0].steps
    assert [step.label for step in steps] == [str(k) for k in range(12)]
    shown = np.array(steps[5].args[0]["z"][0])
    np.testing.assert_allclose(shown, dataset["attention_received"].sel(position=5).mean("sample"), atol=5e-5)


def test_the_slider_of_a_long_text_holds_the_first_positions_and_the_strongest(dataset):
    long = dataset["attention_received"].isel(position=[1] * 200).assign_coords(position=range(200)).copy()
    long.loc[{"position": 77}] = 0.9
    long.loc[{"position": 180}] = 0.95  # the most of all, from less than half of the queries
    data = long.to_dataset().assign(tokens=dataset["tokens"] * 0 + 200)
    labels = [step.label for step in attention_received(data).layout.sliders[0].steps]
    assert labels == [*map(str, range(32)), "77"]


def test_heads_a_layer_does_not_have_stay_empty_and_are_valid_json(dataset):
    dataset["attention_received"].values[:, 0, 1] = np.nan
    figure = attention_received(dataset)
    json.loads(figure.to_json(), parse_constant=pytest.fail)
    assert figure.layout.sliders[0].steps[0].args[0]["z"][0][0][1] is None


def test_a_position_that_was_not_measured_is_refused(dataset):
    with pytest.raises(InputError, match="position 40"):
        attention_received(dataset, position=40)


def test_a_measurement_without_the_variable_says_what_it_has(dataset):
    with pytest.raises(InputError, match=r"no attention_received.*hidden_norm"):
        attention_received(dataset.drop_vars("attention_received"))


def test_rates_carry_their_intervals():
    figure = sink_rate_by_position(
        pd.DataFrame({"position": [0, 1], **RATES, "counted": True, "strongest": [True, False]})
    )
    assert list(figure.data[0].error_y.array) == [3.0, 1.0]
    assert list(figure.data[0].error_y.arrayminus) == [2.0, 0.5]
    assert "%" in figure.layout.yaxis.title.text


def test_inputs_are_named_as_text():
    figure = sink_rate_by_input(pd.DataFrame({"input": ["natural", "<b>x</b>"], **RATES}))
    assert list(figure.data[0].y) == ["natural", "&lt;b&gt;x&lt;/b&gt;"]
    assert list(figure.data[0].error_x.array) == [3.0, 1.0]


def test_without_a_position_the_first_measured_one_is_shown(dataset):
    later = dataset.sel(position=[3, 5])
    shown = plot(later, 0.3, "heads", None).data[0].z
    np.testing.assert_allclose(shown, dataset["attention_received"].sel(position=3).mean("sample"), rtol=1e-6)
    assert any(trace.name == "position 3" for trace in plot(later, 0.3, "hidden", None).data)
    with pytest.raises(InputError, match="position 0"):
        plot(later, 0.3, "heads", 0)
