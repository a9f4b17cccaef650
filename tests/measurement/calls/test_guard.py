"""An attention function that does something else than it says is caught: no row may be wrong silently."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from sinkscope.attention import Operation, Weights
from sinkscope.errors import UnsupportedModelError
from sinkscope.measurement import AttentionReceived, observe, observing
from sinkscope.measurement.calls import reading
from sinkscope.measurement.calls.call import AttentionCall
from sinkscope.measurement.calls.guard import verified
from sinkscope.measurement.calls.masks import DenseMask, Rule
from tests.families import contract
from tests.families.registry import FAMILIES
from tests.measurement.conftest import lab_model

Change = Callable[[AttentionCall], AttentionCall]


def without_window(call: AttentionCall) -> AttentionCall:
    queries, keys = call.query.shape[2], call.key.shape[2]
    return replace(call, mask=Rule(keys, causal=queries > 1, start=keys - queries), kernel_lse=None)


MUTANTS: dict[str, tuple[str, Change]] = {
    "a dropped sink logit": ("gpt_oss", lambda call: replace(call, sink=None)),
    "a dropped sink scale": ("granite_swa", lambda call: replace(call, sink=None)),
    "a dropped window": ("mistral", without_window),
    "a dropped softcap": ("gemma2", lambda call: replace(call, softcap=None)),
    "a dropped position bias": ("t5", lambda call: replace(call, bias=None)),
    "a wrong scale": ("llama", lambda call: replace(call, scaling=call.scaling * 1.01, kernel_lse=None)),
    "a dropped causal mask": ("opt", lambda call: replace(call, mask=Rule(call.mask.keys, False), kernel_lse=None)),
    "heads in another order": ("qwen3", lambda call: replace(call, query=call.query.flip(1), kernel_lse=None)),
}


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mutant_is_refused(mutant: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    name, change = MUTANTS[mutant]
    if mutant == "a wrong scale" and dtype == torch.bfloat16:
        pytest.skip("one per cent is less than bfloat16's rounding")
    family = FAMILIES[name]
    model, inputs = family.build(family.hosts[-1], dtype), family.inputs()
    monkeypatch.setattr(observing, "read_call", lambda *args: change(reading.read_call(*args)))
    with pytest.raises(UnsupportedModelError, match=f"family '{model.config.model_type}'.*does not follow"):
        contract.observed(model, inputs, AttentionReceived())


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_that_slips_by_is_far_from_eager_attention(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, change = MUTANTS[mutant]
    monkeypatch.setattr(observing, "read_call", lambda *args: change(reading.read_call(*args)))
    monkeypatch.setattr(observing.guard, "verified", lambda call, *_, **__: call)
    assert contract.check(name, FAMILIES[name].hosts[-1]).error > 1e-4


def test_a_host_that_hides_a_sink_is_refused(ids: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other direction: the function does more than its arguments say."""
    from transformers.models.llama import modeling_llama

    honest = modeling_llama.eager_attention_forward

    def secretive(*args: Any, **kwargs: Any) -> Any:
        output, weights = honest(*args, **kwargs)
        return output * 0.98, weights

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", secretive)
    with pytest.raises(UnsupportedModelError, match=r"layers\.0"):
        contract.observed(FAMILIES["llama"].build("eager"), {"input_ids": ids}, AttentionReceived())


def test_a_kernel_whose_log_sum_exp_is_wrong_is_not_believed(
    ids: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = FAMILIES["llama"]
    honest = contract.check("llama", "sdpa")
    seen: list[AttentionCall] = []

    def tampered(*args: Any) -> AttentionCall:
        call = reading.read_call(*args)
        assert call.kernel_lse is not None, "the CPU flash kernel gives its log-sum-exp"
        seen.append(call)
        return replace(call, kernel_lse=call.kernel_lse + 0.1)

    monkeypatch.setattr(observing, "read_call", tampered)
    row = contract.check("llama", "sdpa")
    assert seen
    assert row.error < 1e-5
    assert abs(row.error - honest.error) < 1e-5
    assert family.exists


def test_the_window_is_checked_where_it_begins_to_matter(monkeypatch: pytest.MonkeyPatch, ids: torch.Tensor) -> None:
    """A short prompt says nothing about a window; the pass in which it matters must be checked again."""
    model = FAMILIES["mistral"].build("sdpa")
    monkeypatch.setattr(observing, "read_call", lambda *args: without_window(reading.read_call(*args)))
    with observe(model, AttentionReceived()), torch.no_grad():
        model(ids[:, :4])
        with pytest.raises(UnsupportedModelError):
            model(ids)


@pytest.mark.parametrize("name", ["softmax", "k_bias"])
def test_an_operation_with_other_weights_than_its_scores_say_is_refused(
    name: str, ids: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = lab_model(name)
    honest = Operation.weights

    def other(*args: Any, **kwargs: Any) -> Weights:
        found = honest(*args, **kwargs)
        return Weights(found.token * 0.9, found.slot)

    monkeypatch.setattr(Operation, "weights", other)
    with pytest.raises(UnsupportedModelError, match=r"operation's weights are not exp"):
        contract.observed(model, {"input_ids": ids}, AttentionReceived())


def test_rows_of_padding_and_rows_that_see_nothing_are_no_evidence() -> None:
    family = FAMILIES["llama"]
    calls: list[AttentionCall] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(observing.guard, "verified", lambda call, *_, **__: calls.append(call) or call)
        contract.observed(family.build("eager"), family.inputs(), AttentionReceived())
    call = calls[0]
    assert call.output is not None
    output = call.output.clone()
    output[:, :, -1] += 1
    broken = replace(call, output=output)
    real = torch.ones(3, 24, dtype=torch.bool)
    with pytest.raises(UnsupportedModelError):
        verified(broken, "llama", 1e-7)
    real[:, -1] = False
    assert verified(replace(broken, real=real), "llama", 1e-7).real is real
    assert isinstance(call.mask, DenseMask)
    blind = call.mask.mask.expand(3, -1, -1, -1).clone()
    blind[:, :, -1] = torch.finfo(torch.float32).min
    assert verified(replace(broken, mask=DenseMask(blind)), "llama", 1e-7).mask.keys == 24
