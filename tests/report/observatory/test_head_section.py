"""The section of heads: what its maps, its panel and its table hold."""

import numpy as np
import pytest

from sinkscope.errors import InputError
from sinkscope.measurement import HEAD_METRICS
from sinkscope.report.observatory.head_section import DATA, head_section, scale, start
from sinkscope.report.observatory.heads import BINS, HeadMaps, angles, histograms, keys, profile
from tests.measurement.planted import SINK_HEAD, measured

EPSILON = 0.3


def test_the_payload_holds_the_numbers_of_the_maps(complete):
    section = head_section(complete.data, EPSILON, 0, None, "measure --map")
    payload = section.widget.data[DATA]
    for metric in payload["metrics"]:
        for index, position in enumerate(payload["positions"] if metric["positioned"] else [0]):
            [entry] = [entry for entry in HEAD_METRICS if entry.name == metric["key"]]
            expected = entry.at(complete.data, EPSILON, [position])[0]
            np.testing.assert_allclose(np.array(metric["values"][index]), expected, rtol=1e-3)
    assert [metric["key"] for metric in payload["metrics"]] == [entry.name for entry in HEAD_METRICS if entry.draw]
    assert payload["positions"] == list(range(8))
    assert payload["layers"] == ["0", "1", "2", "3"]
    assert payload["heads"] == 3
    assert payload["start"][1] == SINK_HEAD
    assert payload["mapCommand"] == "measure --map"


def test_the_table_has_a_row_per_head(complete):
    table = head_section(complete.data, EPSILON, 0, None, None).table
    assert len(table) == 12
    row = table[(table["layer"] == "3") & (table["head"] == 1)].iloc[0]
    assert row["Attention received, position 0"] == pytest.approx(0.6, abs=0.02)
    assert row["Value norm ratio, position 0 (×)"] == pytest.approx(0.1, abs=0.01)


def test_the_first_selected_head_receives_most(complete):
    grid_ = complete.data["attention_received"].sel(position=0).mean("sample").values
    layer, head = start(complete.data, 0)
    assert grid_[layer, head] == grid_.max()


def test_the_profile_is_the_mean_over_samples(complete):
    found = profile(complete.data, [0])
    assert found["positions"] == list(range(24))
    expected = complete.data["attention_received"].mean("sample").values
    np.testing.assert_allclose(np.array(found["received"]), expected, rtol=1e-3)
    np.testing.assert_allclose(found["uniform"][0], 1 / np.arange(24, 0, -1), rtol=1e-3)


def test_the_histograms_agree_with_numpy(complete):
    cosine = complete.data["cos_query_key"].transpose("layer", "head", "sample", "position").values
    found = histograms(cosine)
    for layer, head in [(0, 0), (3, 1)]:
        known = cosine[layer, head][~np.isnan(cosine[layer, head])]
        counts, _ = np.histogram(known, BINS)
        np.testing.assert_allclose(found[layer, head], 100 * counts / counts.sum())
    empty = histograms(np.full((1, 1, 2, 3), np.nan))
    assert np.isnan(empty).all()


def test_cosines_just_beyond_one_fall_into_the_last_bin():
    found = histograms(np.array([[[[1.0, 1.0000001, -1.0000001, 0.0]]]]))
    assert found[0, 0, -1] == 50
    assert found[0, 0, 0] == 25


def test_the_angles_tell_the_position_from_the_others(complete):
    found = angles(complete.data, 0)
    centres = np.array(found["centres"])
    assert centres[np.argmax(found["sink"][3][SINK_HEAD])] == pytest.approx(0.8, abs=0.051)
    assert abs(centres[np.argmax(found["others"][3][SINK_HEAD])]) < 0.2


def test_the_sink_s_key_stands_apart_in_the_plane_of_its_head_alone(complete):
    found = keys(complete.data, 0)
    sink = np.array(found["position"]) == 0
    for head, apart in [(SINK_HEAD, True), (0, False)]:
        first = np.array(found["points"][3][head][0])
        gap = abs(first[sink].mean() - first[~sink].mean()) / first[~sink].std()
        assert bool(gap > 5) is apart
    assert len(found["sample"]) == 4 * 24


def test_only_the_first_tokens_of_a_map_are_kept(complete):
    maps = HeadMaps({(1, 0): np.tril(np.ones((300, 300))) / np.arange(1, 301)[:, None]}, ["x"] * 300)
    payload = maps.payload(complete.data)
    assert np.shape(payload["weights"]["1.0"]) == (128, 128)
    assert payload["full"] == 300
    assert len(payload["tokens"]) == 128


def test_queries_and_keys_are_named_where_they_are_the_tokens(complete, pair):
    """Not those of an encoder, which reads other tokens: also not where a decoder attends to them."""
    maps = HeadMaps({(0, 0): np.eye(3)}, ["a", "b", "c"])
    by_stack = dict(zip(pair.data["stack"].values, maps.payload(pair.data)["named"], strict=True))
    assert by_stack == {"encoder": [False, False], "decoder": [True, True], "cross": [True, False]}
    assert maps.payload(complete.data)["named"] == [[True, True]] * complete.data.sizes["layer"]


def test_the_table_of_many_heads_is_called_cut_where_it_is():
    many = measured(layers=8, heads=6).data
    for data, rows in ((many, 40), (many.drop_vars("attention_received"), 48)):
        section = head_section(data, EPSILON, 0, None, None)
        assert len(section.table) == rows
        assert ("The table has the 40 heads" in section.sentence) is (rows == 40)


def test_a_map_of_a_head_that_does_not_exist_is_refused(complete):
    maps = HeadMaps({(9, 0): np.eye(3)})
    with pytest.raises(InputError, match="layer 9, head 0"):
        head_section(complete.data, EPSILON, 0, maps, None)


@pytest.mark.parametrize("key", ["value_ratio", "cos_sink", "max_logit", "alpha"])
def test_scales_hold_every_value(complete, key):
    metric = next(metric for metric in HEAD_METRICS if metric.name == key)
    grids = metric.at(complete.data, EPSILON, [0, 1])
    made = scale(metric, grids, EPSILON)
    slack = 1 + 1e-3
    assert made["low"] <= grids.min() * slack or made["low"] <= grids.min() / slack
    assert made["high"] * slack >= grids.max()
    assert made["low"] < made["high"]


def test_a_map_of_zeros_alone_has_a_scale_that_a_reader_can_read():
    metric = next(metric for metric in HEAD_METRICS if metric.name == "sink")
    made = scale(metric, np.zeros((1, 4, 3)), EPSILON)
    assert (made["low"], made["high"]) == (0.0, 1.0)


@pytest.mark.parametrize(("key", "noise"), [("sink", 1e-12), ("entropy", 1e-9), ("cos_sink", -1e-10)])
def test_what_rounding_leaves_of_zero_is_no_scale(key, noise):
    metric = next(metric for metric in HEAD_METRICS if metric.name == key)
    made = scale(metric, np.full((1, 4, 3), noise), EPSILON)
    assert (made["low"], made["high"]) == ((-1.0, 1.0) if metric.draw == "signed" else (0.0, 1.0))
