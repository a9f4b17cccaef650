"""Values per head against plain loops over samples."""

import numpy as np
import pytest

from sinkscope.errors import InputError
from sinkscope.measurements import HEAD_METRICS, applicable
from sinkscope.metrics import angle_split, value_ratio
from tests.measurements.planted import SINK_HEAD

EPSILON = 0.3


def grid(data, key, position=0):
    metric = next(metric for metric in HEAD_METRICS if metric.name == key)
    return metric.at(data, EPSILON, [position])[0]


def test_every_metric_is_present_and_has_a_value_for_every_head(complete):
    assert applicable(complete.data) == list(HEAD_METRICS)
    for metric in HEAD_METRICS:
        found = metric.at(complete.data, EPSILON, [0, 3])
        assert found.shape == (2 if metric.positioned else 1, 4, 3), metric.name
        assert np.isfinite(found).all() if metric.draw else found.dtype.kind in "bU", metric.name


def test_received_and_sinks_are_counted_per_sample(complete):
    received = complete.data["attention_received"].values
    for layer, head in [(0, 0), (2, 1), (3, 1)]:
        alphas = [float(received[sample, layer, head, 0]) for sample in range(6)]
        assert grid(complete.data, "alpha")[layer, head] == pytest.approx(sum(alphas) / 6, rel=1e-5)
        above = 100 * sum(alpha > EPSILON for alpha in alphas) / 6
        assert grid(complete.data, "sink")[layer, head] == pytest.approx(above)
    assert grid(complete.data, "sink")[3, SINK_HEAD] == 100


@pytest.mark.parametrize("position", [0, 1, 23])
def test_the_ratio_at_any_position_is_the_metric_s(complete, position):
    norms = complete.data["value_norm"].values
    expected = np.nanmean(value_ratio(norms, position), 0)
    np.testing.assert_allclose(grid(complete.data, "value_ratio", position), expected, rtol=1e-5)


def test_what_was_not_measured_stays_away(complete):
    data = complete.data.copy()
    data["attention_received"] = data["attention_received"].where(data["attention_received"]["head"] != 2)
    found = grid(data.assign(attention_received=data["attention_received"]), "alpha")
    assert np.isnan(found[:, 2]).all()
    assert np.isfinite(found[:, :2]).all()
    assert [metric.name for metric in applicable(data[["max_logit"]])] == ["max_logit"]
    nothing = data[["max_logit"]].where(data["max_logit"] > 9)
    assert applicable(nothing) == []


def test_names_are_the_columns_of_the_table_and_none_repeats(complete):
    names = [metric.name for metric in HEAD_METRICS]
    assert complete.heads().columns.tolist() == ["stack", "layer", "head", *names]
    assert len(set(names)) == len(names)
    assert all(metric.formula and metric.source and metric.about for metric in HEAD_METRICS)


def test_the_columns_of_earlier_tables_are_all_there(complete):
    earlier = "alpha sink boost peak value_ratio key_ratio cos_sink cos_others drain_correlation output_norm dormant "
    earlier += "key_angle kind slot entropy entropy_bound max_logit output_rank_one output_mean_share "
    assert {*earlier.split(), "sink_output_constancy"} <= {*complete.heads().columns}


@pytest.mark.parametrize("position", [0, 5])
def test_the_cosines_are_those_of_the_split_by_angle(complete, position):
    parts = (complete.data[name].values for name in ("cos_query_key", "key_norm", "query_norm"))
    split = angle_split(*parts, position)
    np.testing.assert_allclose(grid(complete.data, "cos_sink", position), split.cos_sink)
    np.testing.assert_allclose(grid(complete.data, "cos_others", position), split.cos_others)


def test_heads_that_a_layer_lacks_are_left_out(complete):
    data = complete.data.copy(deep=True)
    for name in data.data_vars:
        if "head" in data[name].dims:
            data[name] = data[name].where((data["layer_index"] != 1) | (data[name]["head"] != 2))
    table = type(complete)(data).heads()
    assert len(table) == 11
    assert (1, 2) not in {*zip(table["layer"], table["head"], strict=True)}


def test_keys_of_a_position_that_was_not_kept_have_no_angle(complete):
    data = complete.data.assign_coords(kept_position=range(1, 25))
    assert np.isnan(grid(data, "key_angle", 0)).all()
    assert np.isfinite(grid(data, "key_angle", 1)).all()


def test_without_heads_the_table_is_empty_and_without_positions_refused(complete):
    norms = type(complete)(complete.data[["hidden_norm", "tokens"]])
    assert norms.heads().empty
    with pytest.raises(InputError, match="position 0 was not measured; measured: none"):
        type(complete)(complete.data[["max_logit"]]).heads()
