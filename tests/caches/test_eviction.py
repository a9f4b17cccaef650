"""Eviction inside `generate()`: what equals what."""

from __future__ import annotations

import gc
import weakref
from copy import deepcopy
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from sinkscope.caches import POLICIES, AdaptiveHeads, EvictionCall, Policy, Pyramid, evicting
from sinkscope.caches.layers.slots import SlotsLayer
from sinkscope.caches.policies import (
    H2O,
    FastV,
    KeyNorm,
    LagKV,
    LookM,
    ObservedAttention,
    RandomKeys,
    SnapKV,
    Streaming,
)
from sinkscope.measurement import measure, observe
from tests.families.registry import FAMILIES

IDS = torch.randint(3, 90, (2, 20), generator=torch.Generator().manual_seed(3))
OPTIONS: dict[str, Any] = {"max_new_tokens": 8, "min_new_tokens": 8, "pad_token_id": 0, "do_sample": False}


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return FAMILIES["llama"].build("sdpa")


def generated(model: PreTrainedModel, cache: DynamicCache, ids: Tensor = IDS, **more: Any) -> Tensor:
    return model.generate(ids, past_key_values=cache, **OPTIONS, **more)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["prefill", "always"])
@pytest.mark.parametrize("name", [name for name in POLICIES if name != "fastgen"])  # which drops whatever the room
def test_a_budget_for_everything_changes_nothing(model: PreTrainedModel, name: str, when: Any) -> None:
    wanted = generated(model, DynamicCache(config=model.config))
    policy = FastV(layers=1) if name == "fastv" else name  # which skips two layers, and this model has no more
    with evicting(model, policy, 60 if name != "look-m" else 80, when) as cache:
        assert torch.equal(generated(model, cache), wanted)
    assert cache.get_seq_length() == 27
    assert all(layer.slots.used == 27 for layer in cache.kept)


@pytest.mark.parametrize("beams", [2, 3])
def test_beams_with_room_for_all_are_those_of_transformers(model: PreTrainedModel, beams: int) -> None:
    wanted = generated(model, DynamicCache(config=model.config), num_beams=beams)
    with evicting(model, "h2o", 60, "always") as cache:
        assert torch.equal(generated(model, cache, num_beams=beams), wanted)


@torch.no_grad()
def test_a_reordered_cache_goes_on_as_its_rows_do(model: PreTrainedModel) -> None:
    order = torch.tensor([1, 1, 0])
    with evicting(model, SnapKV(3), 8, "always") as cache:
        model(IDS, past_key_values=cache)
        for token in range(3, 7):
            model(torch.full((2, 1), token), past_key_values=cache)
        twin = deepcopy(cache)
        twin.batch_select_indices(order)
        model(torch.tensor([[9], [9], [9]]), past_key_values=twin)
        after = model(torch.tensor([[11], [11], [11]]), past_key_values=twin).logits
        model(torch.tensor([[9], [9]]), past_key_values=cache)
        wanted = model(torch.tensor([[11], [11]]), past_key_values=cache).logits
    torch.testing.assert_close(after, wanted[order])
    for layer, other in zip(twin.kept, cache.kept, strict=True):
        assert torch.equal(layer.places.sort(-1).values, other.places[order].sort(-1).values)


@torch.no_grad()
def test_a_copy_is_independent(model: PreTrainedModel) -> None:
    with evicting(model, "h2o", 8, "always") as cache:
        model(IDS, past_key_values=cache)
        copies = [deepcopy(cache) for _ in range(2)]
        found = [model(IDS[:, :1], past_key_values=copy).logits for copy in copies]
        assert cache.get_seq_length() == 20
        assert torch.equal(found[0], found[1])
        assert torch.equal(model(IDS[:, :1], past_key_values=cache).logits, found[0])


@torch.no_grad()
def test_a_cache_can_be_used_again_after_reset(model: PreTrainedModel) -> None:
    with evicting(model, "h2o", 8, "always") as cache:
        first = generated(model, cache)
        cache.reset()
        assert cache.get_seq_length() == 0
        assert torch.equal(generated(model, cache), first)


@torch.no_grad()
def test_nothing_of_the_prompt_is_held(model: PreTrainedModel) -> None:
    with evicting(model, SnapKV(4), 8) as cache:
        model(torch.randint(3, 90, (1, 3000)), past_key_values=cache)
    held = {
        storage.data_ptr(): storage.nbytes()
        for layer in cache.kept
        for rows in (*layer.slots.rows.values(), *layer.samples.values())
        for storage in [rows.untyped_storage()]
    }
    assert sum(held.values()) < 40_000  # all of it would be 768,000


@torch.no_grad()
def test_sums_of_the_prompt_are_what_is_measured() -> None:
    for name, host in (("llama", "sdpa"), ("gpt_oss", "eager"), ("gemma2", "eager")):
        family = FAMILIES[name]
        model, ids = family.build(host), family.inputs(1, 24)["input_ids"]  # type: ignore[arg-type]
        measured = measure(model, {"input_ids": ids})
        alpha = torch.from_numpy(measured.data["attention_received"].values)[0]
        noted: dict[int, Tensor] = {}

        class Noting(ObservedAttention):
            def score(self, call: EvictionCall, into: dict[int, Tensor] = noted) -> Tensor:
                into[call.module.layer_idx] = super().score(call)  # type: ignore[index]
                return into[call.module.layer_idx]  # type: ignore[index]

        with evicting(model, Noting(), 64) as cache:
            model(ids, past_key_values=cache)
        assert noted
        for index, found in noted.items():
            wanted = alpha[index].unflatten(0, (found.shape[1], -1)).mean(1)
            torch.testing.assert_close(found[0], wanted.to(found.dtype), atol=2e-6, rtol=1e-4)


@torch.no_grad()
def test_sums_grow_by_steps_as_in_one_pass(model: PreTrainedModel) -> None:
    found = []
    for cuts in ((0, 20), (0, 7, 8, 9, 15, 20)):
        with evicting(model, H2O(0.0), 64, "always") as cache:
            for start, stop in pairwise(cuts):
                model(IDS[:, start:stop], past_key_values=cache)
        found.append([layer.slots[note] for layer in cache.kept for note in H2O().needs])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("length", range(1, 9))
@torch.no_grad()
def test_prompts_about_as_long_as_the_budget(model: PreTrainedModel, length: int) -> None:
    for name in ("h2o", "keydiff", "random", "tova"):
        for when in ("prefill", "always"):
            with evicting(model, name, 6, when) as cache:  # type: ignore[arg-type]
                model(IDS[:, :length], past_key_values=cache)
                assert all(layer.slots.used == min(length, 6) for layer in cache.kept)
                for token in range(3):
                    logits = model(IDS[:, token : token + 1], past_key_values=cache).logits
                    assert bool(logits.isfinite().all())
                wanted = min(length + 3, 6) if when == "always" else min(length, 6) + 3
                for layer in cache.kept:
                    assert [len({p for p in head if p >= 0}) for row in layer.places.tolist() for head in row] == [
                        wanted
                    ] * 4


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("policy", ["streaming", "h2o", LagKV(0, 2), LookM((20, 21), 1, 2, "weighted")])
def test_a_first_pass_of_padding_alone_changes_nothing(model: PreTrainedModel, policy: Policy | str) -> None:
    """As `generate` makes with `prefill_chunk_size` below the padding, of one row or of all."""
    for pads in ((0, 7), (6, 7)):
        mask = (torch.arange(20) >= torch.tensor(pads)[:, None]).long()
        with evicting(model, policy, 8, "always") as cache, evicting(model, policy, 8, "always") as alone:
            for start, stop in ((0, 6), (6, 13), (13, 20)):
                logits = model(IDS[:, start:stop], attention_mask=mask[:, :stop], past_key_values=cache).logits
                if start:
                    wanted = model(IDS[1:, max(start, 7) : stop], past_key_values=alone).logits
            torch.testing.assert_close(logits[1, -1], wanted[0, -1], atol=1e-5, rtol=1e-4)


class Even(Policy):
    """Everything is worth the same."""

    def score(self, call: EvictionCall) -> Tensor:
        return torch.zeros_like(call.places, dtype=torch.float32)


@torch.no_grad()
def test_of_equals_the_newest_stay(model: PreTrainedModel) -> None:
    for when in ("prefill", "always"):
        with evicting(model, Even(), 5, when) as cache:  # type: ignore[arg-type]
            model(IDS, past_key_values=cache)
            for token in range(4):
                model(IDS[:, token : token + 1], past_key_values=cache)
        newest = list(range(19, 24) if when == "always" else range(15, 24))
        assert all(sorted(head) == newest for layer in cache.kept for row in layer.places.tolist() for head in row)


@torch.no_grad()
def test_a_second_turn_goes_on_from_what_is_kept(model: PreTrainedModel) -> None:
    with evicting(model, Streaming(2), 8) as cache:
        first = generated(model, cache)
        longer = torch.cat([first, IDS[:, :5]], 1)
        generated(model, cache, longer)
    assert cache.get_seq_length() == longer.shape[1] + 7
    for layer in cache.kept:
        assert layer.places[0, 0].tolist() == [0, 1, *range(27, 40)]


@torch.no_grad()
def test_inference_mode_can_be_left(model: PreTrainedModel) -> None:
    with evicting(model, SnapKV(3), 8, "always") as cache:
        with torch.inference_mode():
            model(IDS, past_key_values=cache)
        model(IDS[:, :1], past_key_values=cache)
        with torch.inference_mode():
            model(IDS[:, :1], past_key_values=cache)
        wanted = cache.kept[0].places.clone()
    with evicting(model, SnapKV(3), 8, "always") as cache:
        for ids in (IDS, IDS[:, :1], IDS[:, :1]):
            model(ids, past_key_values=cache)
    assert torch.equal(cache.kept[0].places, wanted)


def test_a_cache_that_outlives_its_model_does_not_hold_it() -> None:
    model = FAMILIES["llama"].build("sdpa")
    with evicting(model, "h2o", 8) as cache, torch.no_grad():
        model(IDS, past_key_values=cache)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert cache.get_seq_length() == 20


@torch.no_grad()
def test_pyramids_and_adaptive_heads_decode_as_their_rows_do(model: PreTrainedModel) -> None:
    for budget in (Pyramid(8, 4), AdaptiveHeads(8, 0.25)):
        found = []
        for host in ("eager", "sdpa"):
            model.set_attn_implementation(host)
            for ids in (IDS, IDS[:1]):
                with evicting(model, "h2o" if isinstance(budget, Pyramid) else "observed", budget, "always") as cache:
                    logits = [model(ids, past_key_values=cache).logits[0, -1]]
                    for token in range(4):
                        logits.append(model(ids[:, token : token + 1], past_key_values=cache).logits[0, -1])
                found.append(torch.stack(logits))
        for other in found[1:]:
            torch.testing.assert_close(other, found[0], atol=1e-5, rtol=1e-4)
        used = [layer.slots.used for layer in cache.kept]
        counts = [[sum(p >= 0 for p in head) for head in layer.places[0].tolist()] for layer in cache.kept]
        if isinstance(budget, Pyramid):
            assert used == [14, 2]
        else:
            assert all(sum(heads) == 16 and max(heads) == u for heads, u in zip(counts, used, strict=True))


def test_what_a_layer_foretells_is_what_it_returns(model: PreTrainedModel) -> None:
    foretold: list[tuple[int, int]] = []

    class Watched(SlotsLayer):
        def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
            found = super().get_mask_sizes(query_length)
            foretold.append(found)
            return found

        def update(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            length, offset = self.get_mask_sizes(args[0].shape[2])
            keys, values = super().update(*args, **kwargs)
            assert keys.shape[2] == values.shape[2] == length == self.places.shape[2]
            assert offset + length == self.seen
            return keys, values

    with evicting(model, RandomKeys(), 8, "always") as cache, torch.no_grad():
        cache.layers = [Watched() for _ in cache.layers]
        for ids in (IDS, IDS[:, :1], IDS[:, :3], IDS[:, :1]):
            model(ids, past_key_values=cache)
    assert foretold


def test_first_layers_may_keep_everything(model: PreTrainedModel) -> None:
    for policy in (KeyNorm(skipped_layers=1), FastV((20, 21), layers=1)):
        with evicting(model, policy, 8) as cache, torch.no_grad():
            model(IDS, past_key_values=cache)
        assert [layer.slots.used for layer in cache.kept] == [20, 8]


@pytest.mark.slow
@torch.no_grad()
def test_layers_that_keep_everything_are_not_scored(model: PreTrainedModel) -> None:
    scored: list[int] = []

    class Noting(KeyNorm):
        def score(self, call: EvictionCall) -> Tensor:
            scored.append(call.layer)
            return super().score(call)

    with evicting(model, Noting(skipped_layers=1), 8, "always") as cache:
        model(IDS, past_key_values=cache)
        for token in range(3):
            model(IDS[:, token : token + 1], past_key_values=cache)
    assert scored == [1, 1, 1, 1]


@torch.no_grad()
def test_what_is_observed_of_an_evicting_model_is_all_that_ran(model: PreTrainedModel) -> None:
    """With room for all, what an observer sees through the cache is what it sees in one pass."""
    whole = measure(model, {"input_ids": IDS}).data["attention_received"].values
    with evicting(model, "h2o", 64, "always") as cache, observe(model) as seen:
        for start, stop in ((0, 14), (14, 15), (15, 20)):
            model(IDS[:, start:stop], past_key_values=cache)
    found = seen.measurement().data["attention_received"].values
    np.testing.assert_allclose(found, whole, atol=1e-5)
