"""Eviction in every family that generates with transformers' cache: against a cache cut by hand, and row by row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from sinkscope.caches import EvictingCache, Policy, evicting
from sinkscope.caches.policies import H2O, RandomKeys
from sinkscope.errors import UnsupportedModelError
from tests.families.family import Host
from tests.families.registry import COLLECTED, FAMILIES, KINDS

DECODERS = [
    name
    for kind in ("decoders", "mixtures of experts", "windows, chunks and softcaps", "learned sinks", "latent attention",
                 "hybrids and output gates")
    for name in KINDS[kind]
    if FAMILIES[name].kind == "tokens" and FAMILIES[name].auto == "AutoModelForCausalLM"
]  # fmt: skip
NOTHING = {  # to evict from: windows or chunks alone, states alone, keys chosen by an index, or caches of their own
    *("mistral", "starcoder2", "cohere2", "olmo3", "llama4", "gemma3n", "inkling2", "hy_v4", "recurrent_gemma"),
    *("minimax", "deepseek_v4", "deepseek_v4_sliding", "afmoe"),
}
BY_KEYS = {"bloom", "codegen", "falcon", "gptj", "mpt", "xglm"}  # exact by keys alone (test_own_attention.py)
TWICE = {"diffllama"}  # attends with its keys more than once
BIASED = {"doge"}  # adds numbers to scores in its mask
FAINT = {"zamba"}  # hardly reads its attention: in fp64 it shows
FAST = ("llama", "gpt_oss", "gemma2", "deepseek_v3", "falcon_h1")
RUNS = [(n, h) for n in DECODERS if n not in NOTHING | TWICE | BIASED for h in FAMILIES[n].hosts]
marked = [run if run[0] in FAST else pytest.param(*run, marks=pytest.mark.slow) for run in RUNS]
REFUSED = ((NOTHING | TWICE | BIASED | COLLECTED.keys()) & (FAMILIES | COLLECTED).keys()) - BY_KEYS
PROMPT, TOTAL, PADS, BUDGET = 20, 26, 7, 8


def stepped(
    model: PreTrainedModel, ids: Tensor, policy: Policy, when: str, pads: int = 0
) -> tuple[Tensor, EvictingCache]:
    """Logits after the prompt and after each token, and the cache."""
    mask = torch.ones_like(ids)
    mask[-1, :pads] = 0
    prompt, logits = ids.shape[1] - (TOTAL - PROMPT), []
    with evicting(model, policy, BUDGET, when) as cache, torch.no_grad():  # type: ignore[arg-type]
        for start, stop in [(0, prompt), *((t, t + 1) for t in range(prompt, ids.shape[1]))]:
            out = model(ids[:, start:stop], attention_mask=mask[:, :stop], past_key_values=cache)
            logits.append(out.logits[:, -1])
    return torch.stack(logits, 1), cache


@torch.no_grad()
def cut_by_hand(model: PreTrainedModel, ids: Tensor, kept: dict[int, Tensor]) -> Tensor:
    """The same with transformers' cache, of which the layers `kept` are cut to those columns after the prompt."""
    cache = DynamicCache(config=model.config)
    logits = [model(ids[:, :PROMPT], past_key_values=cache).logits[:, -1]]
    for index, columns in kept.items():
        layer = cache.layers[index]
        for name in ("keys", "values"):
            rows = getattr(layer, name)
            setattr(layer, name, rows.gather(2, columns[..., None].expand(-1, -1, -1, rows.shape[-1])).clone())
    for t in range(PROMPT, TOTAL):
        given = {"position_ids": torch.tensor([[t]])}
        logits.append(model(ids[:, t : t + 1], past_key_values=cache, **given).logits[:, -1])
    return torch.stack(logits, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "host"), marked)
def test_decoding_is_that_of_a_cache_cut_by_hand(name: str, host: Host) -> None:
    family = FAMILIES[name]
    if (reason := family.obstacle(host)) is not None:
        pytest.skip(reason)
    model = family.build(host, torch.float64 if name in FAINT else torch.float32)
    ids = family.inputs(2, TOTAL)["input_ids"]
    logits, cache = stepped(model, ids, RandomKeys(), "prefill")
    kept = {index: layer.places[:, :, :BUDGET] for index, layer in enumerate(cache.layers) if layer in cache.kept}
    assert all(bool((columns < PROMPT).all()) for columns in kept.values())
    wanted = cut_by_hand(model, ids, kept)
    with torch.no_grad():
        plain = model(ids).logits[:, PROMPT - 1 : TOTAL]
    effect = float((wanted - plain).abs().max())
    assert float((logits - wanted).abs().max()) < 1e-2 * effect
    assert effect > (1e-6 if name in FAINT else 1e-4)  # so that eviction shows at all


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "host"), [run for run in RUNS if run[0] in FAST or run[1] == FAMILIES[run[0]].hosts[-1]]
)
def test_a_padded_row_keeps_what_it_keeps_alone(name: str, host: Host) -> None:
    family = FAMILIES[name]
    if (reason := family.obstacle(host)) is not None:
        pytest.skip(reason)
    model = family.build(host)
    ids = family.inputs(2, TOTAL)["input_ids"]
    for when in ("prefill", "always") if name in FAST else ("always",):
        logits, cache = stepped(model, ids, H2O(0.25), when, PADS)
        alone, own = stepped(model, ids[1:, PADS:], H2O(0.25), when)
        for layer, other in zip(cache.kept, own.kept, strict=True):
            for places, expected in zip(layer.places[1].tolist(), other.places[0].tolist(), strict=True):
                assert sorted(p - PADS for p in places if p >= PADS) == sorted(expected)
        torch.testing.assert_close(logits[1], alone[0], atol=1e-5 * max(1.0, float(alone.abs().max())), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_evict_is_refused_in_a_line(name: str) -> None:
    family = (FAMILIES | COLLECTED)[name]
    if family.kind != "tokens" or family.auto != "AutoModelForCausalLM" or not family.exists:
        return
    model = family.build(family.hosts[0])
    ids = family.inputs(1, TOTAL)["input_ids"]
    with pytest.raises((UnsupportedModelError, ValueError, TypeError)):
        stepped(model, ids, RandomKeys(), "always")
