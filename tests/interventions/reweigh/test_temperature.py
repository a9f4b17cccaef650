"""A temperature: against written-out maps, and what cannot carry one."""

from __future__ import annotations

import pytest
import torch

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.interventions import Temperature
from sinkscope.measurement import AttentionReceived, observe
from tests.families.registry import FAMILIES
from tests.interventions.conftest import logits
from tests.interventions.reweigh import written
from tests.measurement.conftest import lab_model


@pytest.mark.parametrize(
    ("name", "host"),
    [("llama", "sdpa"), ("llama", "eager"), ("gemma2", "eager"), ("gpt_oss", "eager"), ("bert", "sdpa")],
)
@pytest.mark.parametrize("tau", [0.5, 2.0])
def test_all_logits_of_a_row_are_divided(name, host, tau):
    model, inputs = FAMILIES[name].build(host), FAMILIES[name].inputs()

    def rule(a: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
        raised = a.clamp(min=1e-38) ** (1 / tau) * (a > 0)  # e^((s − L) / τ), so a sink of logit b has e^(b − L / τ)
        sink = slot ** (1 / tau) * (sinks() ** (1 - 1 / tau) if slot.any() else 1)
        return raised / (raised.sum(-1, keepdim=True) + sink)

    layers = iter(range(100))

    def sinks() -> torch.Tensor:
        return model.model.layers[next(layers)].self_attn.sinks.detach().exp()[None, :, None, None]

    with Temperature(tau).applied(model):
        found = logits(model, **inputs)
    with written.maps_changed(model, rule):
        torch.testing.assert_close(found, logits(model, **inputs), rtol=1e-4, atol=1e-5)
    with Temperature(1.0).applied(model):
        torch.testing.assert_close(logits(model, **inputs), logits(model, **inputs), rtol=0, atol=0)


def test_gradients_are_those_of_written_out_maps():
    model, inputs = FAMILIES["llama"].build("sdpa"), FAMILIES["llama"].inputs(tokens=7)

    def gradient() -> torch.Tensor:
        model.zero_grad()
        model(**inputs).logits[..., 3].sum().backward()
        return model.model.layers[0].self_attn.q_proj.weight.grad.clone()

    with Temperature(1.7).applied(model):
        found = gradient()
    with written.maps_changed(model, lambda a, slot: (r := (a + 1e-30) ** (1 / 1.7)) / r.sum(-1, keepdim=True)):
        torch.testing.assert_close(found, gradient(), rtol=1e-3, atol=1e-5)


def test_chosen_heads_alone_and_observers_see_it():
    model, inputs = FAMILIES["llama"].build("sdpa"), FAMILIES["llama"].inputs()
    with observe(model, AttentionReceived("all")) as plain:
        logits(model, **inputs)
    with observe(model, AttentionReceived("all")) as seen, Temperature(3.0, heads=((0, 1),)).applied(model):
        logits(model, **inputs)
    before, after = (one.measurement().data["attention_received"].values[:, 0] for one in (plain, seen))
    assert abs(before[:, [0, 2, 3]] - after[:, [0, 2, 3]]).max() < 1e-6
    assert abs(before[:, 1] - after[:, 1]).max() > 1e-3


def test_what_cannot_carry_one_is_refused():
    gemma, one = FAMILIES["gemma2"].build("eager"), Temperature(2.0, heads=((0, 1),))
    with one.applied(gemma), pytest.raises(UnsupportedModelError, match="softcap is shared"):
        logits(gemma, **FAMILIES["gemma2"].inputs())
    for name in ("kv_bias", "sigmoid"):
        model = lab_model(name)
        with Temperature(2.0).applied(model), pytest.raises(UnsupportedModelError, match=r"scaled products|softmax"):
            logits(model, input_ids=torch.randint(3, 90, (1, 9)))
    for tau in (0.0, -1.0, float("inf")):
        with pytest.raises(InputError, match="tau"):
            Temperature(tau)


def test_controls():
    model, generator = FAMILIES["llama"].build("sdpa"), torch.Generator().manual_seed(0)
    assert Temperature(2.0).control(generator, model, {}).tau == 0.5
    control = Temperature(2.0, heads=((0, 1), (1, 2))).control(generator, model, {})
    assert len(control.heads) == 2
    assert not {(0, 1), (1, 2)} & set(control.heads)
