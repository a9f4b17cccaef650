"""Heads that keep few beside heads that keep many: less memory, and nothing else is different."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from sinkscope.caches import EvictingCache, HeadClasses, Policy, evicting
from sinkscope.caches.layers.slots import KeptSets
from sinkscope.caches.policies import H2O, SnapKV, Streaming

RETRIEVES = np.array([[False, True, False, False], [False] * 4, [True, False, False, False]])
IDS = torch.randint(3, 90, (2, 40), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=97, num_key_value_heads=4, **sizes)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                parameter.mul_(12)
    return model


@torch.no_grad()
def run(model: LlamaForCausalLM, policy: Policy, pads: int, host: str) -> tuple[Tensor, EvictingCache, list[bool]]:
    """Logits of a prompt, some tokens, a second turn and some more."""
    model.set_attn_implementation(host)
    mask = torch.ones(2, 60).long()
    mask[1, :pads] = 0
    ids, logits, grouped = torch.cat([IDS, IDS], 1), [], []
    with evicting(model, policy, HeadClasses(RETRIEVES, 8)) as cache:
        for start, stop in ((0, 40), (40, 41), (41, 42), (42, 50), (50, 51), (51, 52)):
            out = model(ids[:, start:stop], attention_mask=mask[:, :stop], past_key_values=cache)
            logits.append(out.logits[:, -1])
            grouped.append(cache.kept[0].groups is not None)
            if stop == 51:
                cache.reorder_cache(torch.tensor([0, 1]))
    return torch.stack(logits, 1), cache, grouped


@pytest.mark.slow
@pytest.mark.parametrize("host", ["eager", "sdpa"])
@pytest.mark.parametrize("pads", [0, 7])
@pytest.mark.parametrize("policy", [Streaming(2), H2O(0.25), SnapKV(4)])
def test_two_rectangles_are_one_with_gaps(
    model: LlamaForCausalLM, policy: Policy, pads: int, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, cache, grouped = run(model, policy, pads, host)
    monkeypatch.setattr(KeptSets, "regroup", lambda self: None)
    wanted, other, never = run(model, policy, pads, host)
    assert grouped == [True] * 6
    assert not any(never)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
    for layer, whole in zip(cache.kept, other.kept, strict=True):
        for heads, expected in zip(layer.places.tolist(), whole.places.tolist(), strict=True):
            assert [sorted(p for p in h if p >= 0) for h in heads] == [sorted(p for p in h if p >= 0) for h in expected]


@torch.no_grad()
def test_heads_that_keep_few_hold_few(model: LlamaForCausalLM) -> None:
    def held(layer: KeptSets) -> int:
        return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in layer.held}.values())

    with evicting(model, Streaming(2), HeadClasses(RETRIEVES, 8)) as cache:
        model(torch.randint(3, 90, (1, 600)), past_key_values=cache)
    every = 4 * 600 * (8 + 8) * 4
    assert held(cache.kept[0]) < 0.35 * every + 10_000  # a quarter is one head of four, whose places are held as well
    assert held(cache.kept[1]) < 20_000


def test_a_model_with_learned_sinks_keeps_one_rectangle() -> None:
    from tests.families.registry import FAMILIES

    model = FAMILIES["gpt_oss"].build("eager")
    heads = model.config.num_key_value_heads
    with evicting(model, "streaming", 8) as cache:
        layers = len(cache.kept)
    retrieves = np.zeros((layers, heads), bool)
    retrieves[:, 0] = True
    given: dict[str, Any] = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0}
    with evicting(model, "streaming", HeadClasses(retrieves, 6)) as cache:
        model.generate(IDS, past_key_values=cache, **given)
    assert all(layer.groups is None and layer.gaps for layer in cache.kept)
