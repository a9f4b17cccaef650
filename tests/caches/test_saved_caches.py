"""A cache goes to a file and back, and what follows is what would have followed."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from sinkscope.caches import AdaptiveHeads, StreamingCache, evicting
from sinkscope.caches.policies import H2O, VATP, ExpectedAttention, FastGen, KeyNorm, ObservedAttention, SnapKV
from sinkscope.errors import InputError
from sinkscope.sinks import First
from tests.families.registry import FAMILIES

IDS = torch.randint(3, 90, (2, 24), generator=torch.Generator().manual_seed(3))
MASK = torch.ones_like(IDS).index_put_((torch.tensor(1), torch.arange(5)), torch.tensor(0))
CASES: dict[str, tuple[Any, Any, str]] = {
    "notes of keys": (VATP(2, 0.25), 9, "always"),
    "notes of queries": (SnapKV(4, 3), 9, "always"),
    "moments": (ExpectedAttention(2, 9), 9, "always"),
    "bits": ("scissorhands", 11, "always"),
    "classes": (FastGen((), (), 1, 0.2, 0.2, 0.3), 1.0, "always"),
    "added tokens": (H2O(), 9, "prefill"),
    "two rectangles": (ObservedAttention(), AdaptiveHeads(6, 0.2), "prefill"),
    "nothing dropped": ("keydiff", 100, "prefill"),
}


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return FAMILIES["llama"].build("sdpa")


@pytest.mark.parametrize("steps", [0, 6])
@pytest.mark.parametrize("name", CASES)
def test_an_evicting_cache_goes_on_as_it_would(model: PreTrainedModel, name: str, steps: int, tmp_path: Path) -> None:
    """Also where its layers were scored side by side by then."""
    policy, budget, when = CASES[name]
    file = tmp_path / "prompt.safetensors"
    with (
        evicting(model, policy, budget, when) as cache,  # type: ignore[arg-type]
        evicting(model, policy, budget, when) as other,  # type: ignore[arg-type]
        torch.no_grad(),
    ):
        model(IDS, attention_mask=MASK, past_key_values=cache)
        for step in range(steps):
            mask = torch.cat([MASK, MASK.new_ones(2, step + 1)], 1)
            model(IDS[:, :1], attention_mask=mask, past_key_values=cache)
        cache.save(file)
        other.load(file)
        assert other.get_seq_length() == cache.get_seq_length() == 24 + steps
        for step in range(8):
            mask = torch.cat([MASK, MASK.new_ones(2, steps + step + 1)], 1)
            wanted, found = (
                model(IDS[:, :1], attention_mask=mask, past_key_values=each).logits for each in (cache, other)
            )
            torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
        for one, two in zip(cache.kept, other.kept, strict=True):
            assert [sorted(head) for row in one.places.tolist() for head in row] == [
                sorted(head) for row in two.places.tolist() for head in row
            ]


@pytest.mark.parametrize("family", ["llama", "gemma3", "falcon_h1"])
@pytest.mark.parametrize("tokens", [3, 20])
def test_a_stream_goes_on_as_it_would(family: str, tokens: int, tmp_path: Path) -> None:
    model, file = FAMILIES[family].build("sdpa"), tmp_path / "prompt.safetensors"
    cache, other = StreamingCache(model, 2, 6), StreamingCache(model, 2, 6)
    other.prefill(model, IDS[:, :9])  # which goes
    cache.prefill(model, IDS[:, :tokens], 5)
    cache._origin.base = 1  # places counted from elsewhere stay so
    cache.save(file)
    other.load(file)
    assert other._origin.base == 1
    options: dict[str, Any] = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    options |= {"output_logits": True, "return_dict_in_generate": True}
    wanted, found = (model.generate(IDS[:, :tokens], past_key_values=each, **options) for each in (cache, other))
    torch.testing.assert_close(torch.stack(found.logits), torch.stack(wanted.logits), rtol=0, atol=0)


def test_caches_that_hold_nothing_are_written_too(model: PreTrainedModel, tmp_path: Path) -> None:
    file = tmp_path / "empty.safetensors"
    StreamingCache(model, 2, 6).save(file)
    cache = StreamingCache(model, 2, 6)
    cache.prefill(model, IDS)
    cache.load(file)
    assert cache.get_seq_length() == 0


def test_other_settings_models_and_files_are_refused(model: PreTrainedModel, tmp_path: Path) -> None:
    file = tmp_path / "prompt.safetensors"
    cache = StreamingCache(model, 2, 6)
    cache.prefill(model, IDS)
    cache.save(file)
    with pytest.raises(InputError, match="window = 6, but this one has 7"):
        StreamingCache(model, 2, 7).load(file)
    with pytest.raises(InputError, match="kind = 'StreamingCache'"), evicting(model, "h2o", 9) as evicts:
        evicts.load(file)
    other = FAMILIES["llama"].build("sdpa")
    with torch.no_grad():
        other.lm_head.weight[0, 0] += 1
    with pytest.raises(InputError, match="another model"):
        StreamingCache(other, 2, 6).load(file)
    (tmp_path / "text").write_text("no cache")
    for name in ("text", "missing"):
        with pytest.raises(InputError, match="cannot be read as a cache"):
            cache.load(tmp_path / name)
    with (
        evicting(model, KeyNorm(), 9, protect=First(1)) as cache,
        evicting(model, KeyNorm(), 9, protect=First(2)) as more,
        torch.no_grad(),
    ):
        model(IDS, past_key_values=cache)
        cache.save(file)
        with pytest.raises(InputError, match="'protect': 'first:1'"):
            more.load(file)


def test_pickle_is_refused_with_the_way(model: PreTrainedModel) -> None:
    with pytest.raises(InputError, match=r"cache\.save\(path\)"):
        pickle.dumps(StreamingCache(model, 2, 6))


def test_a_text_that_does_not_go_on_is_refused(model: PreTrainedModel) -> None:
    """As a second call of a pipeline with a used cache."""
    cache = StreamingCache(model, 2, 6)
    model.generate(IDS[:, :9], past_key_values=cache, max_new_tokens=3, do_sample=False, pad_token_id=0)
    with pytest.raises(InputError, match="has seen 11 tokens, and the pass brings none") as error:
        model.generate(IDS[:, :4], past_key_values=cache, max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert "\n" not in str(error.value)
    cache.reset()
    model.generate(IDS[:, :4], past_key_values=cache, max_new_tokens=3, do_sample=False, pad_token_id=0)


@torch.no_grad()
def test_what_dropped_nothing_can_be_cropped(model: PreTrainedModel) -> None:
    for crop in (5, -4):
        for open_ in (lambda: evicting(model, KeyNorm(), 30), lambda: evicting(model, "keydiff", 30, "always")):
            with open_() as cache:
                check_crop(model, cache, crop)
        check_crop(model, StreamingCache(model, 7, 23), crop)


def check_crop(model: PreTrainedModel, cache: Any, crop: int) -> None:
    plain = cache.__deepcopy__({})
    model(IDS[:, :9], past_key_values=cache)
    cache.crop(crop)
    assert cache.get_seq_length() == 5
    model(IDS[:, :5], past_key_values=plain)
    for start, stop in ((10, 13), (13, 14), (14, 23)):
        wanted, found = (model(IDS[:, start:stop], past_key_values=each).logits for each in (plain, cache))
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_what_cannot_be_cropped_says_why(model: PreTrainedModel) -> None:
    stream = StreamingCache(model, 2, 6)
    model(IDS, past_key_values=stream)
    with pytest.raises(InputError, match="seen 24 tokens and cannot be cropped to 20: layer 0 dropped all but 7 of 24"):
        stream.crop(-4)
    stream.crop(24)
    for policy, says in (("key-norm", "layer 0 dropped some"), ("h2o", "dropped some")):
        with evicting(model, policy, 9) as cache:
            model(IDS, past_key_values=cache)
            with pytest.raises(InputError, match=says):
                cache.crop(10)
    with evicting(model, "h2o", 90) as cache:
        model(IDS, past_key_values=cache)
        with pytest.raises(InputError, match="notes of what its queries attended to"):
            cache.crop(10)
    windows = FAMILIES["gemma3"].build("sdpa")
    stream = StreamingCache(windows, 2, 60)
    windows(IDS, past_key_values=stream)
    with pytest.raises(InputError, match="layer 0 has a window of"):
        stream.crop(10)
    states = FAMILIES["falcon_h1"].build("sdpa")
    stream = StreamingCache(states, 2, 60)
    states(IDS, past_key_values=stream)
    with pytest.raises(InputError, match="states that depend on the tokens"):
        stream.crop(10)
