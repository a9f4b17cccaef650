"""Two measurements added are one of all texts; a table by token; one head's map."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from torch import Tensor
from transformers import BartConfig, BartForConditionalGeneration

import sinkscope as ss
from sinkscope.errors import InputError
from sinkscope.measurement import AttentionMaps, AttentionReceived, Comparison
from sinkscope.model import load_tokenizer
from tests.families.registry import FAMILIES
from tests.measurement.conftest import build


@pytest.fixture(scope="module")
def nano() -> Any:
    return ss.load("nano")


def ids(rows: int, length: int, seed: int) -> Tensor:
    return torch.randint(3, 2000, (rows, length), generator=torch.Generator().manual_seed(seed))


def test_two_measurements_added_are_one_of_all_texts(nano: Any) -> None:
    first, second = ids(3, 20, 0), ids(4, 20, 1)
    added = ss.measure(nano, first) + ss.measure(nano, second)
    whole = ss.measure(nano, torch.cat([first, second]), batch_size=3)
    xr.testing.assert_allclose(added.data, whole.data, atol=1e-5)
    assert added.record["samples"] == 7
    assert added.sink_rate_interval(position=0) == pytest.approx(whole.sink_rate_interval(position=0))
    assert len((added + ss.measure(nano, first)).record["input"]["joined"]) == 3


def test_the_record_is_of_both(nano: Any) -> None:
    tokenizer = load_tokenizer("nano")
    first, second, other = (ss.measure(nano, ids(3, 20, seed), tokenizer=tokenizer) for seed in (0, 1, 2))
    added, whole = first + second, ss.measure(nano, torch.cat([ids(3, 20, 0), ids(3, 20, 1)]), tokenizer=tokenizer)
    for name in ("token_text", "token_bytes", "special_tokens"):
        assert added.record.get(name) == whole.record.get(name), name
    assert added.token_kinds().equals(whole.token_kinds())
    assert added.record["input"]["position_0"] == whole.record["input"]["position_0"]
    assert not Comparison(added, first + other).paired
    assert Comparison(added, first + second).paired


def test_what_is_not_a_number_in_one_is_said_of_both(nano: Any) -> None:
    broken = copy.deepcopy(nano)
    texts, bad = ids(2, 12, 0), ids(2, 12, 1)
    bad[1, 4] = 2001
    with torch.no_grad():
        broken.get_input_embeddings().weight[2001] = 3e38
    with pytest.warns(UserWarning, match="NaN or infinite"):
        last = ss.measure(broken, bad)
    with pytest.warns(UserWarning, match="NaN or infinite"):
        whole = ss.measure(broken, torch.cat([texts, bad]))
    added = ss.measure(broken, texts) + last
    assert added.record["non_finite"] == whole.record["non_finite"]
    assert (added + last).record["non_finite"]["samples"] == 2


def test_layers_are_causal_where_both_are() -> None:
    model, texts = build("llama"), ids(2, 12, 0) % 30
    causal = torch.ones(12, 12).tril().bool().expand(2, 1, -1, -1)
    one, other = (
        ss.measure(model, {"input_ids": texts, "attention_mask": mask}) for mask in (causal, torch.ones_like(causal))
    )
    assert bool(one.data["causal"].all())
    for added in (one + other, other + one):
        assert not bool(added.data["causal"].any())


def test_texts_of_other_lengths_are_filled_as_in_one_measurement(nano: Any) -> None:
    long, short = ids(2, 20, 0), ids(2, 12, 1)
    added = ss.measure(nano, long) + ss.measure(nano, short)
    padded = torch.cat([torch.zeros(2, 8, dtype=torch.long), short], 1)
    mask = torch.ones(4, 20, dtype=torch.long)
    mask[2:, :8] = 0
    whole = ss.measure(nano, {"input_ids": torch.cat([long, padded]), "attention_mask": mask})
    for name in ("attention_received", "hidden_norm", "value_norm", "visible_queries"):
        np.testing.assert_allclose(added.data[name], whole.data[name].transpose(*added.data[name].dims), atol=1e-4)
    assert np.array_equal(added.data["token_id"], whole.data["token_id"])


def test_what_is_not_alike_is_not_added(nano: Any) -> None:
    plain = ss.measure(nano, ids(2, 12, 0))
    with pytest.raises(InputError, match="differ in observers"):
        plain + ss.measure(nano, ids(2, 12, 0), [ss.AttentionReceived()])
    with pytest.raises(InputError, match="kept of a measurement's first samples"):
        ss.measure(nano, ids(2, 12, 0), [AttentionMaps(8)]) + ss.measure(nano, ids(2, 12, 0), [AttentionMaps(8)])
    other = copy.deepcopy(nano)
    other.model.layers[1].self_attn.o_proj.weight.data[:, 32:64] = 0  # one head of four
    with pytest.raises(InputError, match="two models with the name nano: their weights differ"):
        plain + ss.measure(other, ids(2, 12, 1))
    with pytest.raises(TypeError):
        plain + 1


def test_the_table_by_token_has_every_head_and_text(nano: Any) -> None:
    tokenizer = load_tokenizer("nano")
    measurement = ss.measure(nano, ids(2, 10, 0), tokenizer=tokenizer)
    table = measurement.by_token()
    assert len(table) == 20
    row = table[(table["sample"] == 1) & (table["position"] == 4)].iloc[0]
    data = measurement.data
    assert row["alpha 3.2"] == pytest.approx(float(data["attention_received"].sel(layer=3)[1, 2, 4]))
    assert row["hidden 2"] == pytest.approx(float(data["hidden_norm"].sel(depth=2)[1, 4]))
    assert row["token_id"] == int(data["token_id"][1, 4])
    assert row["text"] == tokenizer.convert_ids_to_tokens(int(row["token_id"])) or row["text"] in tokenizer.decode(
        [int(row["token_id"])]
    )
    alone = measurement.by_token(layer=3)
    assert {"query 3.0", "key 3.3", "value 3.1", "hidden 3", "hidden 4"} <= set(alone.columns)
    assert not [name for name in alone.columns if name.startswith("alpha 2")]
    with pytest.raises(InputError, match="layer 9 was not measured"):
        measurement.by_token(9)


def test_the_map_of_one_head_is_the_models_own(nano: Any) -> None:
    text = ids(1, 10, 0)
    measurement = ss.measure(nano, text, [AttentionMaps(10)])
    figure = measurement.plot("map", layer=3, head=2)
    with torch.no_grad():
        maps = nano(input_ids=text, output_attentions=True).attentions[3][0, 2]
    shown = np.nan_to_num(np.asarray(figure.data[0].z, dtype=float))
    np.testing.assert_allclose(shown, maps.numpy(), atol=1e-5)
    with pytest.raises(InputError, match="give layer= and head="):
        measurement.plot("map")
    with pytest.raises(InputError, match="go with plot 'map'"):
        measurement.plot("sink", layer=1, head=0)
    with pytest.raises(InputError, match="no maps were kept"):
        ss.measure(nano, text).plot("map", layer=0, head=0)


def test_the_table_of_an_encoder_decoder_is_of_the_decoder() -> None:
    sizes = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    torch.manual_seed(0)
    model = BartForConditionalGeneration(BartConfig(vocab_size=64, max_position_embeddings=64, **sizes, **heads)).eval()
    measured = ss.measure(model, {"input_ids": ids(2, 20, 0) % 60 + 3, "decoder_input_ids": ids(2, 6, 1) % 60 + 3})
    table = measured.by_token(layer=1)
    assert len(table) == 12
    data = measured.data
    for name, variable in (("alpha", "attention_received"), ("value", "value_norm")):
        layer = int(np.flatnonzero((data["stack"] == "decoder") & (data["layer_index"] == 1))[0])
        wanted = data[variable].isel(layer=layer).transpose("sample", "position", "head").values[:, :6, 2]
        np.testing.assert_array_equal(table[f"{name} 1.2"], wanted.reshape(-1))
    depth = int(np.flatnonzero((data["depth_stack"] == "decoder") & (data["depth_index"] == 2))[0])
    wanted = data["hidden_norm"].isel(depth=depth).transpose("sample", "position").values[:, :6]
    np.testing.assert_array_equal(table["hidden 2"], wanted.reshape(-1))


def test_the_map_of_an_encoder_decoder_is_that_of_the_tokens_that_it_names() -> None:
    family = FAMILIES["t5"]
    model, inputs = family.build(), family.inputs()
    figure = ss.measure(model, inputs, [AttentionReceived("all"), AttentionMaps(24)]).plot("map", layer=1, head=2)
    with torch.no_grad():
        weights = model(**inputs, output_attentions=True).decoder_attentions[1][0, 2]
    shown = np.nan_to_num(np.asarray(figure.data[0].z, dtype=float))[: len(weights), : len(weights)]
    np.testing.assert_allclose(shown, weights.numpy(), atol=1e-5)
