"""Padding, caches and prepared inputs: what was measured is what the same row alone gives in one pass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from transformers import DynamicCache, StaticCache

from sinkscope.errors import InputError
from sinkscope.measurement import AttentionReceived, HiddenNorms, Measurement, QueryKeyValueNorms, measure, observe
from tests.families.registry import FAMILIES
from tests.measurement.conftest import ADDITIVE, CAUSAL, build

Same = Callable[..., None]
FEW = ["llama", "mistral", "gemma3", "gpt_oss", "jamba", "lab:sigmoid", "lab:k_bias"]


def padded(ids: torch.Tensor, lengths: list[int], side: str) -> dict[str, torch.Tensor]:
    width = ids.shape[1]
    columns = torch.arange(width)
    left = columns >= width - torch.tensor(lengths)[:, None]
    right = columns < torch.tensor(lengths)[:, None]
    return {"input_ids": ids, "attention_mask": (left if side == "left" else right).long()}


def real_part(ids: torch.Tensor, row: int, length: int, side: str) -> torch.Tensor:
    return ids[row : row + 1, -length:] if side == "left" else ids[row : row + 1, :length]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CAUSAL, "bert", "modernbert"])
def test_a_padded_row_equals_the_same_row_alone(name: str, ids: torch.Tensor, assert_same: Same) -> None:
    model, lengths = build(name), [24, 19, 13]
    # These families count padding as positions unless position ids are given; right padding is neutral.
    side = "right" if name in ("gpt2", "bert", "modernbert") else "left"
    inputs = padded(ids, lengths, side)
    together = measure(model, inputs, ADDITIVE)
    for row, length in enumerate(lengths):
        alone = measure(model, real_part(ids, row, length, side), ADDITIVE)
        part = type(together)(together.data.isel(sample=[row]))
        assert_same(part, alone, 2e-4)
        assert int(together.data["tokens"][row, 0]) == length
        assert bool(part.data["attention_received"][..., length:].isnull().all())
        assert bool(part.data["hidden_norm"][..., length:].isnull().all())


@pytest.mark.slow
@pytest.mark.parametrize("name", CAUSAL)
def test_generate_equals_the_full_pass(name: str, ids: torch.Tensor, assert_same: Same) -> None:
    model = build(name)
    with observe(model, *ADDITIVE) as seen:
        text = model.generate(ids[:2, :5], max_new_tokens=8, min_new_tokens=8, do_sample=False, pad_token_id=0)
    assert_same(seen.measurement(), measure(model, text[:, :-1], ADDITIVE), 2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t5", "bart"])
def test_a_decoder_that_reads_an_encoder_generates_the_same_numbers(name: str, assert_same: Same) -> None:
    model, inputs = build(name), FAMILIES[name].inputs()
    options = {"max_new_tokens": 9, "min_new_tokens": 9, "do_sample": False, "pad_token_id": 0}
    lengths = torch.tensor([24, 20, 17])
    inputs = {"input_ids": inputs["input_ids"], "attention_mask": (torch.arange(24) < lengths[:, None]).long()}
    with observe(model, *ADDITIVE) as seen:
        text = model.generate(**inputs, **options)
    found, whole = seen.measurement(), measure(model, {**inputs, "decoder_input_ids": text[:, :-1]}, ADDITIVE)
    assert found.record["not_measured"] == {"encoder": "was never called"}, "generate runs the encoder by itself"
    whole = Measurement(whole.data.isel(layer=slice(2, None), depth=slice(3, None)))
    assert found.data["stack"].values.tolist() == whole.data["stack"].values.tolist()
    assert_same(found, whole, 2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", FEW)
def test_chosen_positions_survive_the_window_that_drops_them(name: str, ids: torch.Tensor, assert_same: Same) -> None:
    model, observer = build(name), AttentionReceived([0, 3, 20])
    with observe(model, observer) as seen:
        text = model.generate(ids[:2, :5], max_new_tokens=12, min_new_tokens=12, do_sample=False, pad_token_id=0)
    assert_same(seen.measurement(), measure(model, text[:, :-1], [observer]), 2e-5)


@pytest.mark.parametrize("name", [name for name in FEW if name != "jamba"])  # which forgets its states: refused
def test_chunked_prefill_equals_the_full_pass(name: str, ids: torch.Tensor, assert_same: Same) -> None:
    model = build(name)
    cache = DynamicCache(config=model.config)
    with observe(model, *ADDITIVE) as seen, torch.no_grad():
        for start, stop in ((0, 9), (9, 17), (17, 24)):
            model(ids[:, start:stop], past_key_values=cache, use_cache=True)
    assert_same(seen.measurement(), measure(model, ids, ADDITIVE), 2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
def test_a_padded_generation_equals_each_row_alone(name: str, ids: torch.Tensor, assert_same: Same) -> None:
    model, lengths = build(name), [6, 4]
    inputs = padded(ids[:2, :6], lengths, "left")
    options = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    with observe(model, *ADDITIVE) as seen:
        model.generate(**inputs, **options)
    together = seen.measurement()
    for row, length in enumerate(lengths):
        with observe(model, *ADDITIVE) as seen:
            model.generate(real_part(ids[:2, :6], row, length, "left"), **options)
        alone = seen.measurement()
        assert_same(type(together)(together.data.isel(sample=[row])), alone, 2e-4)


def test_passes_of_different_gradient_modes_go_together(ids: torch.Tensor, assert_same: Same) -> None:
    model, cache = build("llama"), DynamicCache()
    with observe(model, *ADDITIVE) as seen:
        with torch.inference_mode():
            model(ids[:, :9], past_key_values=cache)
        with torch.no_grad():
            model(ids[:, 9:], past_key_values=cache)
    assert_same(seen.measurement(), measure(model, ids, ADDITIVE), 2e-4)


def test_a_static_cache_equals_the_full_pass(ids: torch.Tensor, assert_same: Same) -> None:
    model = build("llama")
    cache = StaticCache(config=model.config, max_cache_len=40)
    with observe(model, *ADDITIVE) as seen, torch.no_grad():
        model(ids[:, :20], past_key_values=cache, use_cache=True)
        for position in range(20, 24):
            model(ids[:, position : position + 1], past_key_values=cache, use_cache=True)
    assert_same(seen.measurement(), measure(model, ids, ADDITIVE), 2e-4)


def test_prepared_embeddings_equal_token_ids(ids: torch.Tensor, assert_same: Same) -> None:
    model = build("llama")
    embedded = {"inputs_embeds": model.get_input_embeddings()(ids).detach()}
    measurement = measure(model, embedded, ADDITIVE)
    assert_same(measurement, measure(model, ids, ADDITIVE), 1e-6)
    assert measurement.record["input"] == {"position_0": "no token ids were given"}


def test_batches_of_any_size_give_the_same_numbers(ids: torch.Tensor, assert_same: Same) -> None:
    model = build("mistral")
    assert_same(measure(model, ids, ADDITIVE, batch_size=1), measure(model, ids, ADDITIVE), 2e-5)


def test_a_prefix_from_before_observation_has_no_queries(ids: torch.Tensor) -> None:
    model, cache = build("llama"), DynamicCache()
    with torch.no_grad():
        model(ids[:, :10], past_key_values=cache)
        with observe(model, AttentionReceived(), HiddenNorms(), QueryKeyValueNorms()) as seen:
            model(ids[:, 10:], past_key_values=cache)
    data, eager = seen.measurement().data, build("llama", "eager")
    with torch.no_grad():
        maps = torch.stack(eager(ids, output_attentions=True).attentions, 1)[..., 10:, :]
    counts = torch.arange(24, 0, -1).clamp(max=14)
    assert np.abs(data["attention_received"].values - (maps.sum(-2) / counts).numpy()).max() < 1e-5
    assert bool(data["hidden_norm"][..., :10].isnull().all())
    assert bool(data["value_norm"][..., :10].isnull().all())
    assert bool(data["value_norm"][..., 10:].notnull().all())


def test_several_beams_are_refused(ids: torch.Tensor) -> None:
    model = build("llama")
    with pytest.raises(InputError, match="beam search reorders"), observe(model, AttentionReceived()):
        model.generate(ids[:1, :5], max_new_tokens=6, num_beams=3, do_sample=False, pad_token_id=0)
    model.generate(ids[:1, :5], max_new_tokens=2, num_beams=3, do_sample=False, pad_token_id=0)


def test_a_cropped_cache_is_refused(ids: torch.Tensor) -> None:
    model, cache = build("llama"), DynamicCache()
    with observe(model, AttentionReceived()), torch.no_grad():
        model(ids[:, :10], past_key_values=cache)
        cache.crop(-4)
        with pytest.raises(InputError, match="was cropped"):
            model(ids[:, 10:], past_key_values=cache)


@pytest.mark.parametrize("change", ["batch_repeat_interleave", "batch_select_indices"])
def test_a_cache_of_other_rows_is_refused(change: str, ids: torch.Tensor) -> None:
    """As many tokens as were observed, but of twice or half the rows."""
    model, cache = build("llama"), DynamicCache()
    with observe(model, AttentionReceived()), torch.no_grad():
        model(ids[:2, :10], past_key_values=cache)
        if change == "batch_repeat_interleave":
            cache.batch_repeat_interleave(2)
            rows = ids[[0, 0, 1, 1], 10:]
        else:
            cache.batch_select_indices(torch.tensor([1]))
            rows = ids[1:2, 10:]
        with pytest.raises(InputError, match=f"holds {len(rows)} rows of 10 tokens, but 2 rows of 10"):
            model(rows, past_key_values=cache)


class Deaf(torch.nn.Module):
    """A model around a model that keeps the attention mask to itself."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> object:
        return self.inner(input_ids)


def test_an_attention_mask_that_does_not_fit_is_refused(ids: torch.Tensor) -> None:
    mask = torch.ones(3, 20, dtype=torch.long)
    mask[0, 0] = 0
    with pytest.raises(InputError, match=r"attention_mask \(3, 20\) does not fit input_ids \(3, 24\)"):
        measure(Deaf(build("llama")), {"input_ids": ids, "attention_mask": mask})
