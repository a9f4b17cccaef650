"""Eviction in families with attention in code of their own: against a cache cut by hand, and in generate."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from sinkscope.caches import Pyramid, evicting
from sinkscope.caches.policies import KeyDiff, KeyNorm, LagKV, Policy, RandomKeys, Streaming
from sinkscope.caches.positions import maker_of_alibi
from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks import own_attention
from tests.caches.test_families import BUDGET, PADS, PROMPT, TOTAL, cut_by_hand, stepped
from tests.families.registry import COLLECTED

PLACED = ("gptj", "codegen", "falcon", "xglm")
POLICIES = (RandomKeys(), KeyNorm(), KeyDiff(), LagKV(2, 3), Streaming(2))


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


@torch.no_grad()
def hidden_by_hand(model: PreTrainedModel, ids: Tensor, kept: list[list[Tensor]]) -> Tensor:
    """With transformers' cache of everything, of which the bias of each head hides all columns but the query's own and
    those `kept` before it, (batch, heads, n) for each layer."""
    cache, name = DynamicCache(config=model.config), {"bloom": "alibi", "mpt": "position_bias"}[model.config.model_type]
    logits = [model(ids[:, :PROMPT], past_key_values=cache).logits[:, -1]]

    def hide(module: Any, args: Any, given: dict[str, Any]) -> Any:
        columns, bias = kept[t - PROMPT][module.layer_idx], given[name][..., -t - 1 :]
        gone = torch.ones(*columns.shape[:2], t + 1, dtype=torch.bool).scatter_(2, columns, False)
        gone[:, :, t] = False
        gone = gone.flatten(0, 1) if name == "alibi" else gone[0]
        return args, given | {name: bias.masked_fill(gone[:, None], -1e9)}

    hooks = [module.register_forward_pre_hook(hide, with_kwargs=True) for module in own_attention(model)]
    for t in range(PROMPT, TOTAL):
        logits.append(model(ids[:, t : t + 1], past_key_values=cache).logits[:, -1])
    for hook in hooks:
        hook.remove()
    return torch.stack(logits, 1)


@pytest.mark.parametrize("when", ["prefill", "always"])
@pytest.mark.parametrize("name", ["bloom", "mpt"])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_alibi_is_that_of_the_places_where_keys_stood(name: str, policy: Policy, when: Any) -> None:
    """Heads keep different keys, in any order; in MPT, whose bias is one for all rows, rows one at a time."""
    family = COLLECTED[name]
    model, ids = family.build(), family.inputs(2 if name == "bloom" else 1, TOTAL)["input_ids"]
    model.config.use_cache = True
    with evicting(model, policy, BUDGET, when) as cache, torch.no_grad():
        plain, logits, kept = model(ids).logits[:, PROMPT - 1 : TOTAL], [], []
        for start, stop in pairwise([0, *range(PROMPT, TOTAL + 1)]):
            logits.append(model(ids[:, start:stop], past_key_values=cache).logits[:, -1])
            kept.append([layer.places.clone() for layer in cache.kept])
    wanted = hidden_by_hand(model, ids, kept)
    assert float((wanted - plain).abs().max()) > 1e-4
    torch.testing.assert_close(torch.stack(logits, 1), wanted, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ["bloom", "mpt"])
def test_alibi_of_several_tokens_behind_kept_ones(name: str) -> None:
    """Two tokens at once are two tokens one by one, as long as none goes between them."""
    family = COLLECTED[name]
    model, ids = family.build(), family.inputs(1, TOTAL)["input_ids"]
    model.config.use_cache = True
    found = []
    for cuts in ((TOTAL - 2, TOTAL - 1, TOTAL), (TOTAL - 2, TOTAL)):
        with evicting(model, KeyDiff(), BUDGET, "prefill") as cache, torch.no_grad():
            found.append([model(ids[:, a:b], past_key_values=cache).logits[:, -1] for a, b in pairwise((0, *cuts))][-1])
    torch.testing.assert_close(found[0], found[1], atol=1e-6, rtol=1e-5)


def test_rows_of_one_bias_must_keep_the_same_places() -> None:
    family = COLLECTED["mpt"]
    model, ids = family.build(), family.inputs(2, TOTAL)["input_ids"]
    model.config.use_cache = True
    stepped(model, ids, Streaming(2), "prefill")
    with pytest.raises(UnsupportedModelError, match="one row at a time"):
        stepped(model, ids, KeyDiff(), "prefill")


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


@pytest.mark.parametrize("name", [*PLACED, "bloom", "mpt"])
def test_generate_overwrites_a_key_for_each_token(name: str) -> None:
    family = COLLECTED[name]
    model, ids = family.build(), family.inputs(1 if name == "mpt" else 2, TOTAL)["input_ids"]
    model.config.use_cache = True
    more = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "use_cache": True}
    with evicting(model, "key-norm", 64, "always") as cache:
        assert torch.equal(model.generate(ids, past_key_values=cache, **more), model.generate(ids, **more))
    with evicting(model, "keydiff", BUDGET, "always") as cache:
        model.generate(ids, past_key_values=cache, **more)
    assert [layer.places.shape[2] for layer in cache.kept] == [BUDGET, BUDGET]


def test_what_cannot_be_is_one_line() -> None:
    family = COLLECTED["falcon"]
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
    for name in ("gpt_neo", "falcon_alibi"):
        with pytest.raises(UnsupportedModelError, match="by their index in the cache"):
            evicting(COLLECTED[name].build(), "key-norm", 8).__enter__()


@pytest.mark.parametrize("name", ["bloom", "mpt"])
def test_a_transformers_that_makes_alibi_otherwise_is_refused_in_a_line(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, method = COLLECTED[name].build(), {"bloom": "build_alibi_tensor", "mpt": "build_mpt_alibi_tensor"}[name]
    maker = maker_of_alibi(model, method)
    monkeypatch.delattr(type(maker), method)
    with pytest.raises(UnsupportedModelError, match=method), evicting(model, KeyNorm(), BUDGET):
        pass
