"""How many queries see a key, over passes, padding, windows and masks that look ahead; and what follows from it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from sinkscope.errors import InputError
from sinkscope.measurement import (
    AttentionReceived,
    HiddenNorms,
    Measurement,
    compare,
    measure,
    observe,
    strongest_position,
)
from sinkscope.measurement.selection import paper_queries
from sinkscope.model import LabConfig, LabForCausalLM
from tests.families.family import Host
from tests.families.reference import eager_maps
from tests.families.registry import COLLECTED, FAMILIES
from tests.measurement.conftest import build
from tests.measurement.observers.naive import close
from tests.measurement.test_batches import padded
from tests.planted.factory import Plant, planted_ids, planted_model

TOKENS = 24
MASKS = ("visible_queries", "uniform_received", "tokens", "queries", "most_queries")


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt_oss"])
@pytest.mark.parametrize("steps", [(9, 10, 24), (1, 2, 23, 24), (20, 24)])
def test_chunks_and_decoding_count_as_one_pass(name: str, steps: tuple[int, ...], ids: torch.Tensor) -> None:
    model = build(name)
    whole = measure(model, ids, [AttentionReceived()]).data
    cache, start = DynamicCache(config=model.config), 0
    with torch.no_grad(), observe(model, AttentionReceived()) as seen:
        for stop in steps:
            cache = model(ids[:, start:stop], past_key_values=cache, use_cache=True).past_key_values
            start = stop
    found = seen.measurement().data
    for variable in (*MASKS, "attention_received", "causal"):
        close(found[variable].values.astype(float), whole[variable].values.astype(float), 2e-5)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["llama", "mistral", "bert"])
def test_padding_sees_and_is_seen_by_nothing(name: str, side: str, ids: torch.Tensor) -> None:
    model, lengths = build(name), [24, 19, 13]
    together = measure(model, padded(ids, lengths, side), [HiddenNorms()]).data
    for row, length in enumerate(lengths):
        alone = measure(model, ids[:1, :length], [HiddenNorms()]).data
        for variable in ("visible_queries", "uniform_received"):
            close(together[variable].values[row, :, :length], alone[variable].values[0])
            assert np.isnan(together[variable].values[row, :, length:]).all()
        assert together["queries"].values[row].tolist() == [length] * together.sizes["layer"]


NARROW = pytest.mark.filterwarnings("ignore:sink rates say little:UserWarning")  # of a window of a few tokens


@NARROW
def test_the_papers_denominator_follows_from_stored_arrays(ids: torch.Tensor) -> None:
    plain, windowed = (measure(build(name), ids, [AttentionReceived()]) for name in ("llama", "mistral"))
    for epsilon in (0.02, 0.05, 0.1):
        assert plain.sink_rate(epsilon, denominator="paper").equals(plain.sink_rate(epsilon))
    data = windowed.data
    sums = data["attention_received"].values * data["visible_queries"].values[:, :, None]
    paper = sums / np.arange(TOKENS, 0, -1)
    for epsilon in (0.02, 0.05, 0.1):
        wanted = 100 * (paper > epsilon).mean((0, 1, 2))
        close(windowed.sink_rate(epsilon, denominator="paper").values, wanted)
        assert windowed.sink_rate_interval(0, epsilon, denominator="paper").value == pytest.approx(wanted[0])
        by_layer = windowed.layer_sink_rate(epsilon, denominator="paper").values
        close(by_layer, 100 * (paper > epsilon).mean((0, 2)))
    assert windowed.sink_rate(0.05, 0) > windowed.sink_rate(0.05, 0, denominator="paper")
    with pytest.raises(InputError, match="denominator"):
        windowed.sink_rate(denominator="theirs")


def older(measurement: Measurement, **record: object) -> Measurement:
    """As files were before: without what masks say, over T − k."""
    data = measurement.data
    sums = data["attention_received"].values * data["visible_queries"].values[:, :, None]
    paper = (sums / np.arange(data.sizes["position"], 0, -1)).astype(np.float32)
    kept = data.drop_vars(["visible_queries", "uniform_received", "queries", "most_queries", "causal", "row", "start"])
    kept["attention_received"] = (("sample", "layer", "head", "position"), paper)
    return Measurement(kept.assign_attrs(record=json.dumps(measurement.record | record)))


@NARROW
def test_files_of_before_read_as_the_papers_and_do_not_mix_where_they_differ(tmp_path, ids: torch.Tensor) -> None:  # type: ignore[no-untyped-def]
    for name, mixes in (("llama", True), ("mistral", False)):
        new = measure(build(name), ids, [AttentionReceived()])
        older(new).save(tmp_path / f"{name}.nc")
        old = Measurement.load(tmp_path / f"{name}.nc")
        assert (old.record["denominator"], new.record["denominator"]) == ("paper", "visible")
        for epsilon in (0.05, 0.1):
            close(old.sink_rate(epsilon).values, new.sink_rate(epsilon, denominator="paper").values)
        if mixes:
            assert abs(compare(old, new).table(0.05)["difference"]).max() < 1e-4
        else:
            with pytest.raises(InputError, match="measure the older one anew"):
                compare(old, new)
        assert not compare(old, old).table(0.05).empty


@pytest.mark.parametrize("host", ["eager", "sdpa"])
def test_cross_attention_of_more_queries_than_keys_sees_all_keys(host: Host) -> None:
    """Where no mask is written, the last of 60 queries are behind every one of 9 keys, and see all of them."""
    family = FAMILIES["bart"]
    inputs = {"input_ids": torch.randint(3, 90, (2, 9)), "decoder_input_ids": torch.randint(3, 90, (2, 60))}
    model = family.build(host)
    data = measure(model, inputs, [AttentionReceived()]).data
    cross = np.flatnonzero(data["stack"].values == "cross")
    assert (data["visible_queries"].values[:, cross, :9] == 60).all()
    close(data["uniform_received"].values[:, cross, :9], 1 / 9)
    for layer, weights in zip(cross, eager_maps(family, inputs)["cross"], strict=True):
        close(data["attention_received"].values[:, layer, :, :9], weights.mean(-2).numpy(), 1e-5)


@torch.no_grad()
@pytest.mark.parametrize("name", ["openai_gpt", "rembert", "xlnet", "bloom"])
def test_a_key_whose_weight_underflows_is_still_seen(name: str) -> None:
    """Of attention in a family's own code, too, it is masks that tell what a query sees, not weights above zero."""
    family = replace(COLLECTED[name], sharpness=3000.0 if name != "bloom" else 100.0)
    model, ids = family.build(), family.inputs()["input_ids"]
    maps = model(ids, output_attentions=True).attentions
    assert min(float((weights > 0).any(1).float().mean()) for weights in maps) < 0.5, "weights must underflow"
    data = measure(model, ids, [AttentionReceived()]).data
    queries = np.arange(TOKENS, 0, -1) if name in ("openai_gpt", "bloom") else np.full(TOKENS, TOKENS)
    assert (data["visible_queries"].values == queries).all()
    assert data["causal"].values.all() == (name in ("openai_gpt", "bloom"))
    for layer, weights in enumerate(maps):
        close(data["attention_received"].values[:, layer], weights.sum(-2).numpy() / queries, 1e-6)


@torch.no_grad()
def test_in_half_precision_a_small_weight_is_still_seen() -> None:
    """Weights below 6e-8 are 0 in float16, long before a softmax in float32 underflows."""
    model = COLLECTED["bloom"].build(dtype=torch.float16)
    ids = COLLECTED["bloom"].inputs()["input_ids"]
    for parameter in (block.self_attention.query_key_value.weight for block in model.transformer.h):
        parameter.mul_(4)
    assert min(float((each > 0).any(1).float().mean()) for each in model(ids, output_attentions=True).attentions) < 0.5
    data = measure(model, ids, [AttentionReceived()]).data
    assert (data["visible_queries"].values == np.arange(TOKENS, 0, -1)).all()


@torch.no_grad()
def test_a_decoder_that_sees_everything_can_have_its_sink_late() -> None:
    """Causality follows from masks: under an all-visible one position 24 of 32 is seen by all queries."""
    plant = Plant(sinks=(24,))
    model, ids = planted_model(plant), planted_ids(plant)
    tokens = ids.shape[1]
    everything = torch.ones(len(ids), 1, tokens, tokens, dtype=torch.bool)
    ahead = measure(model, {"input_ids": ids, "attention_mask": everything}, [AttentionReceived()])
    assert not ahead.data["causal"].values.any()
    assert ahead.data["visible_queries"].values[..., 24].min() == tokens
    found = strongest_position(ahead.data, 0.3)
    assert found is not None
    assert (found.position, found.rate > 50) == (24, True)
    behind = measure(model, ids, [AttentionReceived()])
    assert behind.data["causal"].values.all()
    late = strongest_position(behind.data, 0.3)
    assert late is None or late.position != 24, "eight of 32 queries see it"


def test_the_warning_on_short_texts_names_what_uniform_attention_gives() -> None:
    found = measure(build("llama"), torch.randint(3, 90, (2, 8)), [AttentionReceived()])
    with pytest.warns(UserWarning, match=r"position 0 of 8 tokens \.34"):
        found.sink_rate()
    longer = measure(build("llama"), torch.randint(3, 90, (2, 12)), [AttentionReceived()])
    assert longer.sink_rate(0.3, 0) >= 0  # a warning would be an error


def test_behind_a_prefix_the_papers_denominator_is_that_of_a_causal_layer() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 48, "vocab_size": 31}
    attention = {"mask": {"kind": "or", "first": {"kind": "causal"}, "second": {"kind": "prefix", "length": 3}}}
    model = LabForCausalLM(LabConfig(attention=attention, **sizes)).eval()
    ids = torch.randint(31, (2, 9), generator=torch.Generator().manual_seed(0))
    data = measure(model, ids, [AttentionReceived("all")]).data
    assert paper_queries(data)[0, 0].tolist() == [9, 9, 9, 6, 5, 4, 3, 2, 1]
