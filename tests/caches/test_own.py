"""Eviction in families with attention in code of their own: against a cache cut by hand, and in generate."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

from sinkscope.caches import Pyramid, evicting
from sinkscope.caches.policies import KeyDiff, KeyNorm, LagKV, Policy, RandomKeys, Streaming
from sinkscope.errors import UnsupportedModelError
from tests.caches.test_families import BUDGET, PADS, TOTAL, cut_by_hand, stepped
from tests.families.registry import COLLECTED

PLACED = ("gptj", "codegen", "falcon", "xglm")
POLICIES = (RandomKeys(), KeyNorm(), KeyDiff(), LagKV(2, 3), Streaming(2))


@pytest.mark.in_part(4)
@pytest.mark.parametrize("name", PLACED)
def test_decoding_is_that_of_a_cache_cut_by_hand(name: str) -> None:
    family = COLLECTED[name]
    model, ids = family.build(), family.inputs(2, TOTAL)["input_ids"]
    with torch.no_grad():
        plain = model(ids).logits[:, -(TOTAL - 19) :]
    for policy in POLICIES:
        logits, cache = stepped(model, ids, policy, "prefill")
        kept = {index: layer.places[:, :, :BUDGET] for index, layer in enumerate(cache.kept)}
        assert all(bool((columns < 20).all()) for columns in kept.values())
        wanted = cut_by_hand(model, ids, kept)
        effect = float((wanted - plain).abs().max())
        assert effect > 1e-4
        assert float((logits - wanted).abs().max()) < 1e-2 * effect


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_the_kept_sets_are_those_of_the_scores(policy: Policy) -> None:
    """Of the keys that transformers' own cache holds."""
    family = COLLECTED["gptj"]
    model, ids = family.build(), family.inputs(2, TOTAL)["input_ids"]
    with torch.no_grad():
        whole = DynamicCache(config=model.config)
        model(ids, past_key_values=whole)
        with evicting(model, policy, BUDGET) as cache:
            model(ids, past_key_values=cache)
    for own, layer in zip(whole.layers, cache.kept, strict=True):
        assert layer.places.shape[2] == BUDGET
        index = layer.places[..., None].expand(-1, -1, -1, own.keys.shape[-1])
        assert torch.equal(layer.slots["keys"], own.keys.gather(2, index)), "keys go with their places"
        if isinstance(policy, KeyNorm):
            lengths = own.keys.norm(dim=-1)
            lowest = lengths.sort(-1).values[..., :BUDGET]  # equal tokens have equal lengths, but for rounding
            torch.testing.assert_close(lengths.gather(-1, layer.places).sort(-1).values, lowest)


@pytest.mark.in_part(2)
@pytest.mark.parametrize("name", PLACED)
def test_generate_overwrites_a_key_for_each_token(name: str) -> None:
    family = COLLECTED[name]
    model, ids = family.build(), family.inputs(2, TOTAL)["input_ids"]
    more = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    with evicting(model, "key-norm", 64, "always") as cache:
        assert torch.equal(model.generate(ids, past_key_values=cache, **more), model.generate(ids, **more))
    with evicting(model, "keydiff", BUDGET, "always") as cache:
        model.generate(ids, past_key_values=cache, **more)
    assert [layer.places.shape[2] for layer in cache.kept] == [BUDGET, BUDGET]


def test_what_cannot_be_is_one_line() -> None:
    family = COLLECTED["gptj"]
    model, ids = family.build(), family.inputs(2, TOTAL)["input_ids"]
    for policy, budget, reason in (
        ("h2o", 8, "H2O needs them; what works: streaming"),
        ("key-norm", Pyramid(8), "all heads and layers keep equally many"),
        (KeyNorm(skipped_layers=1), 8, "KeyNorm needs them"),
    ):
        with pytest.raises(UnsupportedModelError, match=reason):
            evicting(model, policy, budget).__enter__()
    with pytest.raises(UnsupportedModelError, match="rows with padding cannot be evicted from"):
        stepped(model, ids, KeyNorm(), "prefill", PADS)
    for name in ("bloom", "mpt", "gpt_neo", "falcon_alibi"):
        with pytest.raises(UnsupportedModelError, match="by where they stand in the cache"):
            evicting(COLLECTED[name].build(), "key-norm", 8).__enter__()
