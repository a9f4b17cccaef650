"""A cache that goes on from a recorded pass holds and predicts what it would have after reading the context itself."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from sinkscope.caches import (
    POLICIES,
    AdaptiveHeads,
    EvictingCache,
    Policy,
    Pyramid,
    QHitter,
    evicting,
    first_pass,
    policy_of,
)
from sinkscope.caches.first_pass import Attended, recording
from sinkscope.caches.own_attention import ModuleEvictor
from sinkscope.caches.policies import FastV
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.sinks import Online
from tests.caches.contract import TOLERANCE, error, ids
from tests.caches.families import EVERY
from tests.families.registry import COLLECTED, FAMILIES

CONTEXT, TOKENS, KEPT = 50, 59, 42
FAMILIES_TRIED = ("llama", "qwen3", "cohere", "granite", "gpt2", "gpt_neox")
LEFT_ALONE = ("gemma3", "bamba", "olmo_hybrid")  # windows and states beside full attention


@pytest.fixture(scope="module")
def llama() -> Any:
    return FAMILIES["llama"].build("sdpa")


def named(name: str) -> Policy:
    """A policy that fits the budget, in a model of two layers."""
    policy = policy_of(name).fitted(4)
    return replace(policy, layers=1) if isinstance(policy, FastV) else policy


def takes_positions(model: Any) -> bool:
    return "position_ids" in inspect.signature(model.forward).parameters


Recorded = tuple[list[tuple[Tensor, Tensor]], list[Attended]]


@torch.no_grad()
def recorded(model: Any, tokens: Tensor) -> Recorded:
    cache = DynamicCache(config=model.config)
    with recording(model) as recorder:
        # Some families count positions from 1 where none are given.
        given = {"position_ids": torch.arange(tokens.shape[1]).expand(len(tokens), -1)}
        model(tokens, past_key_values=cache, use_cache=True, **(given if takes_positions(model) else {}))
    assert recorder.calls is not None
    states = [(layer.keys, layer.values) for layer in cache.layers if type(layer) is DynamicLayer]
    return states, recorder.calls  # type: ignore[return-value]


@torch.no_grad()
def after(model: Any, tokens: Tensor, cache: EvictingCache, seen: int) -> list[Tensor]:
    """The logits of the tokens after the context: one, then the rest in one pass."""
    logits = []
    for start, stop in ((seen, CONTEXT), (CONTEXT, CONTEXT + 1), (CONTEXT + 1, TOKENS)):
        if start < stop:
            logits.append(model(tokens[:, start:stop], past_key_values=cache, use_cache=True)[0])
    return logits[-2:]


def assert_like_its_own_pass(
    model: Any, policy: Any, budget: Any = KEPT, first: Recorded | None = None, **options: Any
) -> None:
    tokens = ids(3, TOKENS)
    first = recorded(model, tokens[:, :CONTEXT]) if first is None else first
    with evicting(model, policy, budget, **options) as own, evicting(model, policy, budget, **options) as other:
        with torch.no_grad():
            model(tokens[:, :CONTEXT], past_key_values=own, use_cache=True)
        assert other.take_over(tokens[:, :CONTEXT], *first)
        for one, two in zip(own.kept, other.kept, strict=True):
            assert torch.equal(one.places, two.places)
            assert [rows.shape for rows in one.held] == [rows.shape for rows in two.held]
            assert one.samples.keys() == two.samples.keys()
        assert any(bool(((layer.places >= 0).sum(-1) < CONTEXT).all()) for layer in other.kept)  # something was evicted
        for one, two in zip(after(model, tokens, own, CONTEXT), after(model, tokens, other, CONTEXT), strict=True):
            assert error(two, one) <= TOLERANCE


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy(llama: Any, name: str) -> None:
    policy = named(name)
    for when in ("prefill", "always"):
        assert_like_its_own_pass(llama, policy, when=when)


@pytest.mark.parametrize("budget", [AdaptiveHeads(KEPT), Pyramid(KEPT)])
def test_budgets_that_differ_between_heads_and_layers(llama: Any, budget: Any) -> None:
    assert_like_its_own_pass(llama, "h2o", budget, protect="first:2", recent=3)
    assert_like_its_own_pass(llama, "keydiff", budget, protect=Online(), recent=3, when="always")


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", FAMILIES_TRIED)
def test_policies_that_read_weights_and_queries(name: str, attention: str) -> None:
    model = FAMILIES[name].build(attention)
    assert_like_its_own_pass(model, "h2o", when="always")
    assert_like_its_own_pass(model, "snapkv")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(EVERY))
def test_every_family_that_evicts_goes_on_or_reads_the_context_itself(name: str) -> None:
    """DeepSeek and MiniCPM3 cache a latent in place of keys; other families have layers with windows or states."""
    model, tokens = EVERY[name].build(), ids(3, TOKENS)
    try:
        with evicting(model, "keydiff", KEPT) as cache:
            going_on = cache.take_over(tokens[:, :CONTEXT], *recorded(model, tokens[:, :CONTEXT]))
    except (InputError, UnsupportedModelError, ValueError) as error:  # MiniMax has a cache of its own
        pytest.skip(f"nothing can be evicted: {error}")
    if going_on:
        assert_like_its_own_pass(model, "keydiff")


def test_a_cache_writes_nothing_into_what_others_go_on_from(llama: Any) -> None:
    first = recorded(llama, ids(3, TOKENS)[:, :CONTEXT])
    tensors = [tensor for pair in first[0] for tensor in pair]
    tensors += [call.arguments[name] for call in first[1] for name in ("query", "key", "value")]
    before = [tensor.clone() for tensor in tensors]
    for policy in (*map(named, sorted(POLICIES)), QHitter(rounds=True)):
        assert_like_its_own_pass(llama, policy, first=first)
        with evicting(llama, policy, 2 * TOKENS) as cache:  # which evicts nothing, so it rounds where the keys are
            assert cache.take_over(ids(3, TOKENS)[:, :CONTEXT], *first)
    assert all(map(torch.equal, tensors, before))


@pytest.mark.slow
@pytest.mark.parametrize("name", LEFT_ALONE)
def test_layers_that_are_left_alone_are_read(name: str) -> None:
    model = FAMILIES[name].build("sdpa")
    tokens = ids(2, CONTEXT)
    with evicting(model, "streaming", 8) as cache:
        assert not cache.take_over(tokens, *recorded(model, tokens))
        assert cache.get_seq_length() == 0


def test_attention_of_a_familys_own_is_read() -> None:
    model = COLLECTED["falcon"].build("eager")
    tokens = ids(2, CONTEXT)
    first = recorded(model, tokens)
    assert not first[1]
    with evicting(model, "streaming", 8) as cache:
        assert isinstance(cache.evictor, ModuleEvictor)
        assert not cache.take_over(tokens, *first)


def test_a_cache_that_has_read_something_is_not_overwritten(llama: Any) -> None:
    tokens = ids(3, TOKENS)[:, :CONTEXT]
    with evicting(llama, "streaming", 8) as cache, torch.no_grad():
        llama(tokens, past_key_values=cache, use_cache=True)
        assert not cache.take_over(tokens, *recorded(llama, tokens))


def test_a_long_context_is_not_kept(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = ids(3, TOKENS)[:, :CONTEXT]
    queries = sum(call.arguments["query"].nbytes for call in recorded(llama, tokens)[1])
    for largest, kept in ((queries, True), (queries - 1, False)):
        monkeypatch.setattr(first_pass, "LARGEST", largest)
        with recording(llama) as recorder, torch.no_grad():
            llama(tokens)
        assert (recorder.calls is not None) == kept
