import numpy as np
import pytest

from sinkscope.measurement.figures import hidden_norm_map, hidden_norms, value_norms


def traces(figure):
    return {trace.name: trace for trace in figure.data}


def test_the_map_is_the_logarithm_of_the_sample_mean(dataset):
    heat = hidden_norm_map(dataset).data[0]
    expected = dataset["hidden_norm"].mean("sample").values
    np.testing.assert_allclose(10 ** np.asarray(heat.z), expected, rtol=1e-5)
    assert heat.z.shape == (4, 12)


def test_the_long_position_stands_out_against_the_others(dataset):
    lines = traces(hidden_norms(dataset))
    assert list(lines["position 0"].y)[2:] == [50.0, 50.0]
    others = dataset["hidden_norm"].mean("sample").isel(position=slice(1, None)).mean("position")
    np.testing.assert_allclose(lines["mean of the other positions"].y, others, rtol=1e-5)
    assert hidden_norms(dataset).layout.yaxis.type == "log"


def test_the_band_leaves_the_position_itself_out(dataset):
    band = hidden_norms(dataset).data[0]
    assert max(band.y) < 2.0


def test_value_norms_set_the_position_against_the_others(dataset):
    figure = value_norms(dataset)
    bars = {trace.name: trace for trace in figure.data if trace.type == "bar"}
    assert bars["position 0"].y[2] == pytest.approx(0.1)
    assert bars["mean of the other positions"].y[2] == pytest.approx(1.0, abs=0.05)
    heads = [trace for trace in figure.data if trace.type == "scatter"]
    assert [len(trace.y) for trace in heads] == [6, 6]


@pytest.mark.parametrize("draw", [hidden_norm_map, hidden_norms, value_norms])
def test_axes_are_named(draw, dataset):
    layout = draw(dataset).layout
    assert layout.xaxis.title.text
    assert layout.yaxis.title.text


def test_padding_is_left_out(dataset):
    dataset["hidden_norm"].values[:, :, 11] = np.nan
    np.testing.assert_allclose(
        traces(hidden_norms(dataset))["mean of the other positions"].y,
        dataset["hidden_norm"].mean("sample").isel(position=slice(1, 11)).mean("position"),
        rtol=1e-5,
    )
