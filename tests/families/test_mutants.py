"""Losing a sink, a window, a softcap or a bias on the way from the layer to the numbers turns the table red."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sinkscope.errors import UnsupportedModelError
from sinkscope.measurement import observing
from sinkscope.measurement.calls.call import AttentionCall
from sinkscope.measurement.calls.masks import Rule
from tests.families import contract
from tests.families.registry import FAMILIES, Host


def without_sink(call: AttentionCall) -> AttentionCall:
    return replace(call, sink=None)


def without_window(call: AttentionCall) -> AttentionCall:
    return replace(call, mask=Rule(call.mask.keys, causal=call.causal))


def without_softcap(call: AttentionCall) -> AttentionCall:
    return replace(call, softcap=None)


def without_bias(call: AttentionCall) -> AttentionCall:
    return replace(call, bias=None)


def without_scaling(call: AttentionCall) -> AttentionCall:
    return replace(call, scaling=call.query.shape[-1] ** -0.5)


Mutant = Callable[[AttentionCall], AttentionCall]
SINKS = ["gpt_oss", "granite_swa", "granitemoe_swa", "mimo_v2_flash", "flint", "openai_privacy_filter", "hy_v4"]
MUTANTS: list[tuple[str, Host, Mutant]] = [
    *((name, "eager", without_sink) for name in (*SINKS, "inkling2", "deepseek_v4_sliding")),
    *((name, "eager", without_window) for name in ("mistral", "gpt_oss", "llama4", "modernbert", "glm_moe_dsa")),
    *((name, "sdpa", without_window) for name in ("mistral", "gemma3", "minimax_m3")),
    *((name, "eager", without_softcap) for name in ("gemma2", "vaultgemma")),
    *((name, host, without_bias) for name in ("t5", "inkling2") for host in FAMILIES[name].hosts),
    ("granite", "sdpa", without_scaling),
]


@pytest.mark.slow_except(
    "gpt_oss-eager-without_sink",
    "hy_v4-eager-without_sink",
    "modernbert-eager-without_window",
    "vaultgemma-eager-without_softcap",
)
@pytest.mark.parametrize(
    ("name", "host", "mutant"), MUTANTS, ids=[f"{name}-{host}-{mutant.__name__}" for name, host, mutant in MUTANTS]
)
def test_a_mutant_is_refused_and_would_be_wrong(
    name: str, host: Host, mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := FAMILIES[name].obstacle(host):
        pytest.skip(f"{name}: {reason}")
    read = observing.read_call

    def mutated(*args: Any, **kwargs: Any) -> AttentionCall:
        return replace(mutant(read(*args, **kwargs)), kernel_lse=None)

    monkeypatch.setattr(observing, "read_call", mutated)
    with pytest.raises(UnsupportedModelError, match="does not follow from its queries, keys and mask"):
        contract.check(name, host)
    monkeypatch.setattr(observing.guard, "verified", lambda call, *_, **__: call)
    row = contract.check(name, host)
    assert row.error > 1e-3
    assert not row.holds
