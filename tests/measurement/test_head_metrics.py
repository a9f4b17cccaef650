"""Values per head against plain loops over samples."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest

from sinkscope.errors import InputError
from sinkscope.measurement import HEAD_METRICS, Measurement, SinkUpdate, SpikeDimensions, applicable, measure
from sinkscope.measurement.metrics import angle_split, value_ratio
from sinkscope.measurement.observers.observer import Observer, every
from tests.measurement.planted import SINK_HEAD
from tests.planted.factory import Plant, planted_ids, planted_model

EPSILON = 0.3


def grid(data, key, position=0):
    metric = next(metric for metric in HEAD_METRICS if metric.name == key)
    return metric.at(data, EPSILON, [position])[0]


def test_every_metric_is_present_and_has_a_value_for_every_head(complete):
    assert applicable(complete.data, 0) == list(HEAD_METRICS)
    for metric in HEAD_METRICS:
        found = metric.at(complete.data, EPSILON, [0, 3])
        assert found.shape == (2 if metric.positioned else 1, 4, 3), metric.name
        assert np.isfinite(found).all() if metric.draw else found.dtype.kind in "OU", metric.name


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
    assert [metric.name for metric in applicable(data[["max_logit"]], 0)] == ["max_logit"]
    nothing = data[["max_logit"]].where(data["max_logit"] > 9)
    assert applicable(nothing, 0) == []


def test_names_are_the_columns_of_the_table_and_none_repeats(complete):
    names = [metric.name for metric in HEAD_METRICS]
    assert complete.heads().columns.tolist() == ["stack", "layer", "head", *names]
    assert len(set(names)) == len(names)
    assert all(metric.formula and metric.source and metric.about for metric in HEAD_METRICS)


def test_the_columns_of_earlier_tables_are_all_there(complete):
    earlier = "alpha sink lift value_ratio key_ratio cos_sink cos_others drain_correlation output_norm dormant "
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
    found = type(complete)(complete.data.assign_coords(kept_position=range(1, 25)))
    assert "key_angle" not in found.heads()
    assert np.isfinite(found.heads(position=1)["key_angle"]).all()


def test_without_heads_the_table_is_empty_and_without_positions_refused(complete):
    norms = type(complete)(complete.data[["hidden_norm", "tokens"]])
    assert norms.heads().empty
    with pytest.raises(InputError, match="position 0 was not measured; measured: none"):
        type(complete)(complete.data[["max_logit"]]).heads()


ONLY_OF_POSITION_0 = ["sink_output_norm", "rest_output_norm", "sink_output_constancy"]


@pytest.fixture(scope="module")
def shifted() -> tuple[Measurement, Measurement]:
    """The same samples, with what is observed of single positions observed at 0, and at 3."""
    model, ids = planted_model(Plant(sinks=(0, 3))), planted_ids(Plant(sinks=(0, 3)))
    first = [*default("SpikeDimensions", "SinkUpdate")]
    at_3 = [*default(), SpikeDimensions(positions=[3]), SinkUpdate(positions=[3])]
    return measure(model, ids, first), measure(model, ids, at_3)


def default(*others: str) -> Iterator[Observer]:
    names = ("AttentionReceived", "QueryKeyValueNorms", "QueryKeyAngles", "HeadOutputs", "IncomingAttention", *others)
    yield from (observer for observer in every() if type(observer).__name__ in names)


@pytest.mark.slow
def test_what_was_observed_of_another_position_is_not_shown_as_if_of_this_one(shifted) -> None:
    first, at_3 = shifted
    elsewhere = [*ONLY_OF_POSITION_0, "spike_cosine"]
    assert {*elsewhere} <= {*first.heads()}
    assert not {*elsewhere} & {*first.heads(position=3)}
    assert not {*elsewhere} & {*at_3.heads()}
    assert {*elsewhere} <= {*at_3.heads(position=3)}


def test_a_column_at_a_position_is_the_one_of_a_measurement_of_that_position(shifted) -> None:
    """Whatever column both measurements have at position 3 holds the same numbers."""
    first, at_3 = (found.heads(position=3) for found in shifted)
    shared = [name for name in first if name in at_3]
    assert len(shared) > 10
    pd.testing.assert_frame_equal(first[shared], at_3[shared], rtol=1e-5)


def test_every_column_at_a_position_moves_with_it_or_is_about_none(complete) -> None:
    """Numbers are drawn anew at every position: a metric that stays is one of a whole head."""
    of_a_head = {"slot", "drain_correlation", "entropy", "entropy_bound", "max_logit", "output_norm", "dormant"}
    of_a_head |= {"output_rank_one", "output_mean_share", "kind", "self_attention"}
    probed = complete.data.assign_coords(probe_position=[0, 5])
    first, other = (type(complete)(probed).heads(position=position) for position in (0, 5))
    assert {*first} - {*other} == {*ONLY_OF_POSITION_0}
    same = {name for name in other if other[name].equals(first[name])} - {"stack", "layer", "head"}
    assert same <= of_a_head | {"sink"}


def test_an_update_of_several_positions_together_is_of_none_of_them() -> None:
    model, ids = planted_model(Plant()), planted_ids(Plant())
    both = measure(model, ids, [*default(), SinkUpdate(positions=[0, 3])])
    for position in (0, 3):
        assert not {*ONLY_OF_POSITION_0} & {*both.heads(position=position)}
    assert "sink_output_norm" in both.data


def test_a_head_without_numbers_is_neither_dormant_nor_awake(complete) -> None:
    data = complete.data.copy(deep=True)
    data["output_norm"][:, 2, SINK_HEAD] = np.nan
    data["value_norm"][:, 2, SINK_HEAD] = np.nan
    table = type(complete)(data).heads().set_index(["layer", "head"])
    assert table.loc[(2, SINK_HEAD), "dormant"] is pd.NA
    assert table["dormant"].isna().sum() == 1
    assert table.loc[(2, SINK_HEAD), "kind"] == ""
    assert complete.heads().set_index(["layer", "head"]).loc[(2, SINK_HEAD), "kind"] == "no-op"
