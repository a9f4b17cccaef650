"""A policy from outside the package works wherever those of the package do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from transformers import LlamaForCausalLM

import sinkscope as ss
from sinkscope.caches import POLICIES, EvictionCall, Policy, policy_of
from sinkscope.trials import policy_arms
from tests.registering import forgetting


@dataclass(frozen=True)
class LongValues(Policy):
    """score = ‖v‖"""

    def score(self, call: EvictionCall) -> torch.Tensor:
        return call.value.float().norm(dim=-1)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    with forgetting():
        ss.policy(LongValues)
        yield


def test_its_name_stands_for_it(tiny_llama: LlamaForCausalLM) -> None:
    assert policy_of("long-values") == LongValues()
    assert "long-values" in list(POLICIES)[len(POLICIES.own) :]  # behind the package's own
    arms = policy_arms(tiny_llama, torch.randint(0, 101, (1, 40)), ["long-values"], [8], context=32)
    assert [arm.name for arm in arms] == ["long-values@8"]
    with pytest.raises(ss.InputError, match="unknown policy 'long-valeus': did you mean 'long-values'"):
        policy_of("long-valeus")


def test_it_evicts_by_its_name_as_by_its_value(tiny_llama: LlamaForCausalLM) -> None:
    ids = torch.randint(0, 101, (1, 40))
    kept = []
    for policy in ("long-values", LongValues()):
        with ss.evicting(tiny_llama, policy, 12) as cache:
            tiny_llama.generate(ids, past_key_values=cache, max_new_tokens=2, do_sample=False)
        kept.append(torch.stack([layer.places for layer in cache.kept]))
    assert torch.equal(*kept)
    assert kept[0].shape[-1] >= 12


def test_a_name_of_ones_own() -> None:
    class Other(LongValues):
        pass

    assert ss.policy("the-longest")(Other) is Other
    assert ss.policy(Other) is Other  # as where an entry point names what is decorated
    assert [name for name, kind in POLICIES.added.items() if kind is Other] == ["the-longest"]


def test_what_cannot_stand_behind_a_name_is_refused() -> None:
    @dataclass(frozen=True)
    class Needs(LongValues):
        share: float

    class Abstract(Policy):
        pass

    with pytest.raises(ss.InputError, match=r"Needs: its name stands for it with its defaults, but .*'share'"):
        ss.policy(Needs)
    with pytest.raises(ss.InputError, match="it has no `score`"):
        ss.policy(Abstract)
    with pytest.raises(ss.InputError, match=r"decorates a subclass of sinkscope\.caches\.Policy, got 3"):
        ss.policy(3)  # type: ignore[call-overload]
    with pytest.raises(ss.InputError, match="'snapkv' is one of sinkscope's own"):
        ss.policy("snapkv")(LongValues)
