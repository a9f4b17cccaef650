"""Interventions on families with attention of their own: the same edits of weights and of the maps they return."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import own_attention
from sinkscope.interventions import (
    NAMED,
    FirstTokenView,
    ForbidSink,
    HideSink,
    Intervention,
    MuteSink,
    RemoveContribution,
    SetActivations,
    Subject,
    ZeroHeads,
    named,
)
from sinkscope.measurement import AttentionReceived, HeadOutputs, QueryKeyValueNorms, measure, observe
from sinkscope.quantization.kv import calibrated_scales
from sinkscope.trials import changed
from tests.families.registry import COLLECTED
from tests.families.test_own_attention import OWN, padded, tiny
from tests.interventions.conftest import hooks, logits

EVERY: list[Intervention] = [
    ZeroHeads(((0, 1), (1, 2))),
    ZeroHeads(((0, 1),), positions=(5, 6)),
    ForbidSink((0, 2)),
    HideSink((0, 2), 4),
    FirstTokenView(4),
    SetActivations(((1, 2, 3), (0, 0, 1), (2, None, 5))),
    RemoveContribution(2, (0,)),
]
CASES = [(name, it) for name in OWN for it in EVERY]


def maps(model: nn.Module, **inputs: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        return model(**inputs, output_attentions=True).attentions


def title(value: Any) -> str:
    return type(value).__name__ if isinstance(value, Intervention) else str(value)


@pytest.mark.parametrize("name", OWN)
def test_zeroed_heads_are_zeroed_columns_of_the_output_projection(name: str) -> None:
    model, inputs = tiny(name)
    if not own_attention(model):
        pytest.skip("its attention is that of transformers' interface, from 5.24 on")
    with ZeroHeads(((0, 1), (1, 0), (1, 3))).applied(model):
        found = logits(model, **inputs)
    first, second = own_attention(model)
    for module, heads in ((first, (1,)), (second, (0, 3))):
        weight = next(getattr(module, part) for part in ("dense", "out_proj") if hasattr(module, part)).weight
        for head in heads:
            weight.data[:, 8 * head : 8 * head + 8] = 0
    torch.testing.assert_close(found, logits(model, **inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OWN)
def test_forbidden_keys_get_nothing_and_rows_still_sum_to_one(name: str) -> None:
    model, inputs = tiny(name)
    plain = maps(model, **inputs)[0]
    with ForbidSink((0, 2)).applied(model):
        every = torch.stack(maps(model, **inputs))
    own = torch.eye(24, dtype=torch.bool)
    hidden = ~own & torch.isin(torch.arange(24), torch.tensor([0, 2]))
    would_see = plain.masked_fill(hidden, 0).sum(-1, keepdim=True)
    wanted = torch.where(would_see > 0, plain.masked_fill(hidden, 0) / would_see, plain)
    torch.testing.assert_close(every[0], wanted, rtol=1e-3, atol=1e-6)
    assert bool((every[..., hidden] == 0).all())
    torch.testing.assert_close(every.sum(-1), torch.ones(every.shape[:-1]))


@pytest.mark.parametrize("name", OWN)
def test_a_first_tokens_view_is_itself(name: str) -> None:
    model, inputs = tiny(name)
    plain = maps(model, **inputs)[0]
    with FirstTokenView(4).applied(model):
        found = maps(model, **inputs)
    for weights in found:
        torch.testing.assert_close(weights[..., 4, :], torch.eye(24)[4].expand_as(weights[..., 4, :]))
    torch.testing.assert_close(found[0][:, :, 5:], plain[:, :, 5:])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "intervention"), CASES, ids=title)
def test_it_changes_the_model_is_measured_and_leaves_no_trace(name: str, intervention: Intervention) -> None:
    model, inputs = tiny(name)
    maps(model, **inputs)  # transformers puts hooks of its own on some models when maps are first asked for
    before, count = logits(model, **inputs), hooks(model)
    observers = (AttentionReceived(), QueryKeyValueNorms(), HeadOutputs())
    with intervention.applied(model):
        changed = logits(model, **inputs)
        inner = measure(model, inputs, list(observers))
    with observe(model, *observers) as seen, intervention.applied(model):
        logits(model, **inputs)
    assert not torch.allclose(changed, before, atol=1e-5)
    assert inner.data.identical(seen.measurement().data.assign_attrs(inner.data.attrs))
    assert inner.record["not_measured"] == {}
    assert torch.equal(logits(model, **inputs), before)
    assert hooks(model) == count
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize("name", OWN)
def test_zeroed_heads_write_nothing(name: str) -> None:
    model, inputs = tiny(name)
    with ZeroHeads(((1, 2),), positions=(3, 5)).applied(model):
        found = measure(model, inputs, [AttentionReceived(), HeadOutputs()]).data["output_norm"].values
    zero = found == 0
    assert zero[:, 1, 2, [3, 5]].all()
    assert zero.sum() == 6


@pytest.mark.parametrize("name", OWN)
def test_positions_count_real_tokens_from_the_left_and_through_a_cache(name: str) -> None:
    model, inputs = tiny(name)
    given = padded(inputs["input_ids"])
    alone = {"input_ids": inputs["input_ids"][1:2, 6:]}
    if name not in ("bloom", "mpt"):
        given["position_ids"] = (given["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    for intervention in (ForbidSink((0,)), FirstTokenView(7), ZeroHeads(((0, 1),), positions=(5, 6))):
        with intervention.applied(model):
            plain = logits(model, **alone)
            torch.testing.assert_close(logits(model, **given)[1:2, 6:], plain, rtol=1e-3, atol=2e-5)
            with torch.no_grad():
                first = model(alone["input_ids"][:, :6], use_cache=True)
                rest = model(alone["input_ids"][:, 6:], past_key_values=first.past_key_values)
            cached = torch.cat([first.logits, rest.logits], 1)
        torch.testing.assert_close(cached, plain, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("what", [what for what in NAMED if "position" not in what])
def test_every_name_has_an_effect_on_bloom(what: str) -> None:
    model, inputs = tiny("bloom")
    model_ids = {"input_ids": inputs["input_ids"]}
    received = measure(model, inputs, [AttentionReceived([0])]).data["attention_received"].values.mean(0).ravel()
    threshold = float(sorted(received)[-3]) + 1e-4  # two heads are sinks
    chosen = named(what, Subject(model, model_ids, other=5, epsilon=threshold))
    trial = changed(model, model_ids, chosen.intervention, name=what, controls=2, epsilon=threshold)
    assert trial.cost(what).value > 1e-9
    assert trial.cost(what, "nats").value != 0


def test_what_needs_queries_and_values_is_refused_and_hiding_works() -> None:
    model, inputs = tiny("bloom")
    with (
        pytest.raises(UnsupportedModelError, match="MuteSink does not work there, HideSink does"),
        MuteSink().applied(model),
    ):
        pass
    plain = maps(model, **inputs)[0]
    with HideSink((0,), 5).applied(model):
        hidden = maps(model, **inputs)[0]
    assert not hidden[:, :, 5:, 0].any()
    assert torch.equal(hidden[:, :, :5], plain[:, :, :5])


def test_keys_that_nobody_is_shown_are_not_read() -> None:
    model, inputs = tiny("bloom")
    with pytest.raises(UnsupportedModelError, match=r"family 'bloom' .* so its keys cannot be read"):
        calibrated_scales(model, inputs, 448.0)


def test_bad_input_is_one_clear_line() -> None:
    model, inputs = tiny("bloom")
    with pytest.raises(InputError, match=r"head 4 does not exist: layer 0 has heads 0 to 3"):
        ZeroHeads(((0, 4),)).applied(model).__enter__()
    with pytest.raises(InputError, match=r"layer 2 does not exist: .* 0 to 1"):
        ZeroHeads(((2, 0),)).applied(model).__enter__()
    falcon = COLLECTED["falcon"].build("sdpa")
    refusal = pytest.raises(UnsupportedModelError, match=r"FalconAttention took no softmax .* looked for .*'eager'")
    with refusal, ForbidSink((0,)).applied(falcon):
        logits(falcon, **inputs)
    with refusal, ZeroHeads(((0, 0),)).applied(falcon):
        logits(falcon, **inputs)


def test_families_without_queries_keys_and_values_of_their_own_are_refused() -> None:
    model: PreTrainedModel = COLLECTED["xlnet"].build()
    with pytest.raises(UnsupportedModelError, match="family 'xlnet'"), ZeroHeads(((0, 0),)).applied(model):
        pass
