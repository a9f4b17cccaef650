import json

import numpy as np
import pytest

from sinkscope.measurement import AttentionReceived, measure
from sinkscope.measurement.metrics import exceeds
from sinkscope.report.observatory.strip import DATA, drawn, strip_payload, strip_section
from tests.families.registry import FAMILIES
from tests.measurement.planted import EVIL, measured

EPSILON = 0.3


@pytest.fixture(scope="module")
def payload(complete):
    return strip_payload(complete.data, EPSILON, complete.record)


def test_received_is_the_mean_over_heads_of_all_layers_and_of_each(complete, payload):
    received = complete.data["attention_received"].values
    for number, sample in enumerate(payload["samples"]):
        np.testing.assert_allclose(sample["received"][0], received[number].mean((0, 1)), rtol=1e-2)
        np.testing.assert_allclose(sample["received"][3], received[number, 2].mean(0), rtol=1e-2)
        np.testing.assert_allclose(sample["share"][3], 100 * exceeds(received[number, 2], EPSILON).mean(0), rtol=1e-2)
        assert sample["share"][3][0] == pytest.approx(100 / 3, rel=1e-2)
        assert sample["ids"] == complete.data["token_id"].values[number].tolist()
        np.testing.assert_allclose(sample["norm"], complete.data["hidden_norm"].values[number].max(0), rtol=1e-2)


def test_positions_that_few_queries_see_are_not_counted(payload):
    assert payload["samples"][0]["counted"] == [True] * 12 + [False] * 12


def test_texts_are_plain_in_the_payload_and_marks_made_visible(payload):
    assert payload["texts"]["3"] == EVIL
    assert payload["drawn"]["4"] == " window"
    assert payload["drawn"]["2"] == "⏎"
    assert payload["special"] == [0]
    assert drawn(7, None) == "#7"
    assert drawn(7, "") == "∅"


def test_padding_is_left_out():
    data = measured().data
    data["token_id"].values[1, 10:] = -1
    sample = strip_payload(data, EPSILON, {})["samples"][1]
    assert len(sample["ids"]) == len(sample["received"][0]) == len(sample["counted"]) == 10


def test_at_most_eight_samples_are_shown():
    assert len(strip_payload(measured(samples=11).data, EPSILON, {})["samples"]) == 8


def test_long_texts_are_cut_and_the_page_says_so():
    section = strip_section(measured(samples=2, positions=1500).data, EPSILON, {})
    assert len(section.widget.data[DATA]["samples"][0]["ids"]) == 1024
    assert "1024 of 1500 tokens" in section.sentence


def test_of_a_few_measured_positions_the_page_says_how_many_there_are():
    family = FAMILIES["llama"]
    few = measure(family.build(), family.inputs(tokens=24), [AttentionReceived(positions=[0, 5])])
    section = strip_section(few.data, EPSILON, few.record)
    assert section.widget.data[DATA]["samples"][0]["positions"] == [0, 5]
    assert "2 of 24 tokens" in section.sentence


def test_attention_is_that_of_the_stack_that_read_the_ids(pair):
    """The decoder of an encoder-decoder: the encoder reads five tokens more, and other attention goes to them."""
    payload, ids = strip_payload(pair.data, EPSILON, pair.record), FAMILIES["t5"].inputs()["decoder_input_ids"]
    rows = np.flatnonzero(pair.data["stack"].values == "decoder")
    assert [layer["row"] for layer in payload["layers"]] == rows.tolist()
    assert payload["tokens"] == ids.shape[1]
    for number, sample in enumerate(payload["samples"]):
        assert sample["ids"] == ids[number].tolist()
        received = pair.data["attention_received"].values[number][rows, :, : ids.shape[1]]
        np.testing.assert_allclose(sample["received"][0], received.mean((0, 1)), rtol=1e-2)


def test_the_table_lists_the_tokens_that_receive_most(complete):
    table = strip_section(complete.data, EPSILON, complete.record).table
    assert table["position"].head(6).tolist() == [0] * 6
    assert table["token"].head(6).tolist() == ["<s>"] * 6
    json.dumps(strip_payload(complete.data, EPSILON, complete.record), allow_nan=False)
