"""What holds for every intervention: it changes, it is undone, it composes, it has a control of the same budget."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from transformers import AttentionInterface

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.interventions import (
    All,
    FirstTokenView,
    ForbidSink,
    Intervention,
    RemoveContribution,
    ReplacePosition,
    SetActivations,
    SuppressBands,
    SwapPositions,
    ZeroHeads,
)
from sinkscope.measurement import measure, observe
from tests.families.registry import FAMILIES
from tests.interventions.conftest import HOSTS, a_model, generator, hooks, inputs_of, logits

EVERY: list[Intervention] = [
    SetActivations(((1, 2, 3), (0, 0, 1), (2, None, 5))),
    RemoveContribution(2, (0,)),
    ZeroHeads(((0, 1), (1, 2))),
    ZeroHeads(((0, 1),), positions=(5, 6)),
    ForbidSink((0, 2)),
    FirstTokenView(4),
    SwapPositions(0, 3),
    ReplacePosition(0, 3),
    SuppressBands((0, 19)),
    All((SetActivations(((1, 2, 3),)), ForbidSink((0,)), ZeroHeads(((0, 0),)))),
]
ON_TABLES = (SwapPositions, ReplacePosition)


def applicable(name: str, intervention: Intervention) -> bool:
    return not isinstance(intervention, ON_TABLES) or name in ("gpt2", "bert")


CASES = [(name, host, it) for name, host in HOSTS for it in EVERY if applicable(name, it)]

SOME = CASES


def named(value: object) -> str:
    return getattr(type(value), "__name__", "0")


def fails_within(model: torch.nn.Module, **inputs: torch.Tensor) -> None:
    logits(model, **inputs)
    raise InputError("from within")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "host", "intervention"), CASES, ids=lambda value: getattr(type(value), "__name__", 0))
def test_it_changes_the_model_and_leaves_no_trace(name, host, intervention):
    model, inputs = a_model(name, host), inputs_of(name)
    lookup, before, count = AttentionInterface.get_interface, logits(model, **inputs), hooks(model)
    with intervention.applied(model):
        assert not torch.allclose(logits(model, **inputs), before, atol=1e-5)
    with pytest.raises(InputError, match="from within"), intervention.applied(model):
        fails_within(model, **inputs)
    assert torch.equal(logits(model, **inputs), before)
    assert hooks(model) == count
    assert AttentionInterface.get_interface is lookup


@pytest.mark.slow
@pytest.mark.parametrize(("name", "host", "intervention"), CASES, ids=lambda value: getattr(type(value), "__name__", 0))
def test_measurements_see_the_changed_model_whoever_came_first(name, host, intervention):
    model, inputs = a_model(name, host), inputs_of(name)
    plain = measure(model, inputs)
    with intervention.applied(model):
        inner = measure(model, inputs)
    with observe(model) as seen, intervention.applied(model):
        logits(model, **inputs)
    outer = seen.measurement()
    for variable in ("attention_received", "hidden_norm"):
        np.testing.assert_array_equal(inner.data[variable].values, outer.data[variable].values)
    assert not inner.data["hidden_norm"].identical(plain.data["hidden_norm"])


@pytest.mark.parametrize("intervention", EVERY, ids=lambda value: type(value).__name__)
def test_a_control_spends_the_same_budget_elsewhere(intervention):
    model, inputs = a_model("gpt2"), inputs_of("gpt2")
    control = intervention.control(generator(), model, inputs)
    assert type(control) is type(intervention)
    assert control == intervention.control(generator(), model, inputs)
    assert control != intervention
    assert intervention.control(generator(1), model, inputs) != control
    with control.applied(model):
        assert not torch.equal(logits(model, **inputs), 0 * logits(model, **inputs))
    assert json.loads(json.dumps(control.describe()))["name"] == type(control).__name__
    for name in ("entries", "heads", "bands", "parts"):
        if hasattr(intervention, name):
            assert len(getattr(control, name)) == len(getattr(intervention, name))
    if isinstance(intervention, ZeroHeads | SetActivations):
        name = "heads" if isinstance(intervention, ZeroHeads) else "entries"
        assert set(getattr(control, name)).isdisjoint(getattr(intervention, name))
    elif not isinstance(intervention, All):
        assert set(control.positions_named).isdisjoint(intervention.positions_named)


def test_several_at_once_are_those_one_in_the_other():
    model, inputs = a_model("llama"), inputs_of("llama")
    parts = (SetActivations(((1, 2, 3),)), ForbidSink((0,)), SuppressBands((3,)))
    with All(parts).applied(model):
        together = logits(model, **inputs)
    with parts[2].applied(model), parts[1].applied(model), parts[0].applied(model):
        nested = logits(model, **inputs)
    torch.testing.assert_close(together, nested, rtol=0, atol=0)


def test_positions_count_real_tokens_from_the_left_and_through_a_cache():
    model, ids = a_model("llama"), FAMILIES["llama"].inputs()["input_ids"]
    padded = torch.cat([torch.zeros(3, 4, dtype=torch.long), ids], 1)
    mask = (torch.arange(28) >= 4).long().expand(3, -1)
    several = All((SetActivations(((1, 0, 3),)), ForbidSink((0,)), RemoveContribution(2, (5,)), FirstTokenView(7)))
    with several.applied(model):
        plain = logits(model, input_ids=ids)
        left = logits(model, input_ids=padded, attention_mask=mask)[:, 4:]
        with torch.no_grad():
            first = model(ids[:, :6], use_cache=True)
            rest = model(ids[:, 6:], past_key_values=first.past_key_values)
        cached = torch.cat([first.logits, rest.logits], 1)
    torch.testing.assert_close(left, plain, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(cached, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["mistral", "jamba", "deepseek_v3", "t5", "bart", "vit", "diffllama", "bitnet"])
def test_other_families(name):
    model = a_model(name)
    inputs = FAMILIES[name].inputs()
    several = All((SetActivations(((1, 2, 3),)), ForbidSink((0,)), ZeroHeads(((0, 1),))))
    before, inside = measure(model, inputs), None
    with several.applied(model):
        inside = measure(model, inputs)
    after = measure(model, inputs)
    assert after.data.identical(before.data)
    assert not inside.data["hidden_norm"].identical(before.data["hidden_norm"])


def test_bad_input_is_one_clear_line():
    model, inputs = a_model("llama"), inputs_of("llama")

    def refused(intervention: Intervention, match: str) -> None:
        with pytest.raises(InputError, match=match), intervention.applied(model):
            logits(model, **inputs)

    refused(SetActivations(((7, 0, 0),)), "depth 7.*depths 1 to 2")
    refused(SetActivations(((1, 0, 99),)), "dimension 99.*0 to 31")
    refused(RemoveContribution(0, (0,)), "depth 0 is not a block's output")
    refused(ZeroHeads(((5, 0),)), "layer 5.*0 to 1")
    refused(ZeroHeads(((0, 4),)), "head 4.*0 to 3")
    refused(SwapPositions(0, 1), "no table of absolute positions.*rotary")
    for call, match in [
        (lambda: SetActivations(()), "at least one"),
        (lambda: SetActivations(((1, 2),)), r"expected \(depth, position or None, dimension\)"),
        (lambda: SetActivations(((1, 2, 3),), "mean"), "0 means for 1 entries"),
        (lambda: SetActivations(((1, 2, 3),), "median"), "unknown value 'median': did you mean 'mean'"),
        (lambda: ZeroHeads(((0,),)), r"expected \(layer, head\)"),
        (lambda: ForbidSink((-1,)), "-1 is not a non-negative integer"),
        (lambda: ForbidSink(()), "at least one"),
        (lambda: SwapPositions(3, 3), "different"),
        (lambda: SuppressBands((20,)), "band 20 does not exist"),
        (lambda: All(()), "at least one"),
    ]:
        with pytest.raises(InputError, match=match):
            call()
    with pytest.raises(InputError, match="position 99 has no embedding"), SwapPositions(0, 99).applied(a_model("gpt2")):
        pass


def test_places_that_a_family_lacks_are_refused():
    albert = a_model("albert")
    with pytest.raises(UnsupportedModelError, match="several times"), SetActivations(((1, 0, 0),)).applied(albert):
        logits(albert, **inputs_of("albert"))
    with pytest.raises(UnsupportedModelError, match="no unembedding"), SuppressBands((0,)).applied(a_model("vit")):
        pass
    model = a_model("llama")
    with pytest.raises(InputError, match="call that model itself"), SetActivations(((1, 0, 0),)).applied(model):
        model.model(**inputs_of("llama"))


def test_kernels_that_take_no_written_mask_are_refused(monkeypatch):
    model = a_model("llama")
    monkeypatch.setattr(model.config, "_attn_implementation", "eager")
    original = AttentionInterface.get_interface
    monkeypatch.setattr(
        AttentionInterface, "get_interface", lambda self, name, default: original(self, "eager", default)
    )
    monkeypatch.setattr(model.config, "_attn_implementation_internal", "flash_attention_2")
    refusal = pytest.raises(UnsupportedModelError, match="'flash_attention_2' takes no written mask")
    with refusal, ForbidSink((0,)).applied(model):
        logits(model, **inputs_of("llama"))
