"""What starts unchanged does, over the whole catalog; what cannot is named."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import math
import re
from typing import Any

import pytest
import torch
from torch.nn import functional

import sinkscope as ss
from sinkscope.attention import (
    CATALOG,
    AttentionSpec,
    Causal,
    ClippedSoftmax,
    ElementGate,
    HeadGate,
    KeySlot,
    LogLength,
    Relu,
    Softpick,
    ValueBias,
    Window,
    name_of,
)
from sinkscope.errors import InputError
from sinkscope.model.attached import attaching, changes, unchanged
from sinkscope.model.attached.start import CLOSED
from tests.families.registry import FAMILIES
from tests.model.attached.hosts import host, inputs, output
from tests.model.attached.test_catalog import NAMES

GIVEN = inputs("llama")
STARTS_EQUAL = {
    *("softmax", "sink_logit", "kv_bias", "kv_bias_shared", "k_bias", "k_bias_shared", "k_bias_fixed_v"),
    *("k_bias_lowrank", "v_bias", "gated_head", "gated_elementwise", "gated_value", "gated_by_value", "value_gradient"),
}


def test_what_can_start_equal() -> None:
    assert {name for name in NAMES if changes(unchanged(CATALOG[name])) == ()} == STARTS_EQUAL


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_model_is_changed_exactly_where_a_piece_is_named(name: str) -> None:
    model = host("llama")
    before = output(model, GIVEN)
    attached = ss.attach(model, name)
    difference = float((output(model, GIVEN) - before).abs().max())
    closed = {"sink_logit", "kv_bias", "kv_bias_shared", "k_bias", "k_bias_shared", "k_bias_fixed_v", "k_bias_lowrank"}
    assert (difference < (0.05 if name in closed else 1e-5)) == (attached.changes == ()), difference


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_what_is_said_of_the_start_is_what_is_measured(name: str) -> None:
    """Against the two outputs compared here, in float64."""
    model = host("llama")
    before = output(model, GIVEN).double()
    moved = ss.attach(model, name, inputs=GIVEN).shift
    after = output(model, GIVEN).double()
    assert moved.output == pytest.approx(float((after - before).abs().max()), rel=1e-5)
    kl = (before.softmax(-1) * (before.log_softmax(-1) - after.log_softmax(-1))).sum(-1)
    assert moved.nats == pytest.approx(float(kl.max()), rel=1e-3, abs=2e-6)


def test_a_closed_slot_takes_what_its_docstring_says() -> None:
    """sigma(b - L) of each query's mass, L the log-sum-exp of its scores, b low enough for the lowest L of a head."""
    model = host("llama")
    ss.attach(model, "sink_logit", inputs=GIVEN)
    operation = model.model.layers[0].self_attn.operation
    seen: list[tuple[torch.Tensor, ...]] = []
    hook = operation.register_forward_pre_hook(lambda _, args: seen.append(args[:4]))
    output(model, GIVEN)
    hook.remove()
    query, key, _, visibility = seen[0]
    found = operation.weights(query, key, visibility)
    scores = (query @ key.repeat_interleave(2, 1).mT / query.shape[-1] ** 0.5).masked_fill(
        torch.ones(query.shape[2], query.shape[2]).triu(1).bool(), -torch.inf
    )
    lse = scores.logsumexp(-1)
    logit = operation.slot_modules[0].logit
    assert bool((lse.amin((0, 2)) < -1).any()), "in some head a slot of b = -8 would be open"
    torch.testing.assert_close(logit, (lse.amin((0, 2)) + CLOSED).clamp(max=CLOSED), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.slot[..., 0], torch.sigmoid(logit[:, None] - lse), atol=1e-7, rtol=1e-4)


@pytest.mark.parametrize("name", ["sink_logit", "k_bias", "k_bias_fixed_v", "k_bias_lowrank", "kv_bias_shared"])
def test_slots_are_closed_for_queries_whose_log_sum_exp_is_far_below_zero(name: str) -> None:
    """Planted: the first token looks at itself with a score of -30, so that a slot of b = -8 would take all of it."""
    model = host("llama")
    rows = torch.randint(1, 64, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight *= 8
    before = output(model, {"input_ids": rows})
    attached = ss.attach(model, name, inputs=rows, seed=0)
    slots = ss.measure(model, rows, observers=[ss.SlotReceived()]).data["slot_received"]
    assert min(layer.self_attn.operation.slot_modules[0].logit.min() for layer in model.model.layers) < 3 * CLOSED
    assert float(slots.max()) < 4e-4
    assert (output(model, {"input_ids": rows}) - before).abs().max() < 0.02 * before.std()
    assert (attached.changes, attached.shift.small) == ((), True)
    assert "unchanged at the start" in str(attached)


def test_a_learned_key_is_closed_under_a_temperature_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """log n multiplies q·k* as it does q·k: at n = 9 it doubles what the slot adds to its logit."""
    monkeypatch.setattr("sinkscope.attention.slots.keys.INITIAL_STD", 8.0)
    model = host("llama")
    rows = torch.randint(1, 64, (2, 9), generator=torch.Generator().manual_seed(0))
    ss.attach(model, AttentionSpec(slots=(KeySlot(),), temperature=LogLength()), inputs=rows, seed=0)
    seen: list[float] = []
    for layer in model.model.layers:
        layer.self_attn.operation.register_forward_pre_hook(
            lambda operation, args: seen.append(float(operation.weights(args[0], args[1], args[3]).slot.max()))
        )
    output(model, {"input_ids": rows})
    assert max(seen) <= 1.01 / (1 + math.exp(-CLOSED))


def test_the_word_follows_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that stays open, because nothing closes it, is no unchanged start."""
    monkeypatch.setattr(attaching, "closing", lambda *_: contextlib.nullcontext())
    model = host("llama")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight *= 8
    attached = ss.attach(model, "sink_logit", inputs=GIVEN)
    assert attached.shift.output > 0.1
    assert attached.changes == ("logit",)
    assert "from the start changed by logit" in str(attached)


def test_a_start_that_was_asked_for_and_unchosen_layers_are_not_closed_further() -> None:
    model = host("llama")
    ss.attach(model, {"name": "sink_logit", "initial": -8.5}, inputs=GIVEN)
    assert bool((model.model.layers[0].self_attn.operation.slot_modules[0].logit == -8.5).all())
    oss = host("gpt_oss")
    sinks = [layer.self_attn.sinks.detach().clone() for layer in oss.model.layers]
    ss.attach(oss, "sink_logit", layers=[1])
    assert all(torch.equal(a, layer.self_attn.sinks) for a, layer in zip(sinks, oss.model.layers, strict=True))


def test_the_random_inputs_leave_the_generator_alone_and_fit_images() -> None:
    for name, unit in (("vit", "outputs"), ("bert", "logits")):
        model, before = host(name), torch.get_rng_state()
        moved = ss.attach(model, "sink_logit").shift
        assert torch.equal(torch.get_rng_state(), before)
        assert str(moved).startswith(f"{unit} moved by up to ")
        assert str(moved).endswith("on random inputs")
    part = ss.attach(host("llama").model, "sink_logit").shift
    assert part.nats is None
    assert 0 < part.output < 0.1
    assert str(part).startswith("outputs moved by up to")


def test_a_start_that_cannot_be_measured_leaves_the_model_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = host("llama")
    before, state = output(model, GIVEN), list(model.state_dict())
    with pytest.raises(InputError, match="outside the vocabulary"):
        ss.attach(model, "sink_logit", inputs=torch.tensor([[1, 10**6]]))
    monkeypatch.setattr(attaching, "shift", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ss.attach(model, "sink_logit")
    assert list(model.state_dict()) == state
    assert torch.equal(output(model, GIVEN), before)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sink_logit", "kv_bias", "k_bias_lowrank"])
def test_a_closed_slot_opens_where_that_helps(name: str) -> None:
    """Planted: the right answer is that attention adds nothing, which only slots can do. 120 steps of AdamW."""
    silent, given = dataclasses.replace(FAMILIES["llama"], sharpness=2.0).build("sdpa"), inputs("llama")
    model = copy.deepcopy(silent)
    with torch.no_grad():
        for layer in silent.model.layers:
            layer.self_attn.o_proj.weight.zero_()
    wanted = output(silent, given).log_softmax(-1)
    ss.attach(model, name, seed=0)
    started = ss.measure(model, given, observers=[ss.SlotReceived()]).data["slot_received"].mean()
    learned = ss.trainable_only(model)
    begun = {path: parameter.detach().clone() for path, parameter in learned.items()}
    optimizer = torch.optim.AdamW(learned.values(), lr=5e-2, weight_decay=0.0)
    losses = []
    for _ in range(120):
        optimizer.zero_grad()
        loss = functional.kl_div(model(**given).logits.log_softmax(-1), wanted, log_target=True, reduction="batchmean")
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    opened = ss.measure(model, given, observers=[ss.SlotReceived()]).data["slot_received"].mean()
    assert float(started) < 1e-3
    assert float(opened) > 10 * float(started)
    assert float(opened) > 0.4 or name.startswith("kv_bias")  # a value that learns helps beside the opening
    assert losses[-1] < 0.8 * losses[0]
    assert all((parameter - begun[path]).abs().max() > 0.1 for path, parameter in learned.items())


def test_what_somebody_gave_is_what_starts() -> None:
    for initial in (-4.0, 0.0, -20.0):
        model = host("llama")
        attached = ss.attach(model, {"name": "sink_logit", "initial": initial})
        logit = model.model.layers[0].self_attn.operation.slot_modules[0].logit
        assert attached.spec.slots[0].initial == initial
        assert bool((logit == initial).all())
        assert attached.name == name_of(attached.spec)
        assert attached.changes == (("logit",) if initial > CLOSED else ())
    given = AttentionSpec(slots=(KeySlot(initial_logit=-2.0),), output=(HeadGate(initial_std=0.3), ValueBias(0.5)))
    started = unchanged(given)
    assert started.slots == given.slots
    assert started.output == (HeadGate(initial_std=0.3, relative=True), ValueBias(0.5))
    assert changes(started) == ("key", "head_gate", "value_bias")


@pytest.mark.parametrize("normalizer", [Relu(normalized=True), Softpick(), ClippedSoftmax(gamma=-0.03, zeta=1.1)])
def test_a_slot_is_not_closed_where_it_would_never_learn(normalizer: Any) -> None:
    spec = AttentionSpec(slots=(KeySlot(value="learned"),), normalizer=normalizer)
    assert unchanged(spec).slots == spec.slots


@pytest.mark.parametrize(
    "name", ["sink_logit", "kv_bias", "k_bias", "v_bias", "gated_head", "gated_elementwise", "gated_value"]
)
def test_as_is_starts_where_the_operation_does(name: str) -> None:
    model = host("llama")
    before = output(model, GIVEN)
    attached = ss.attach(model, name, start="as_is")
    assert attached.changes != ()
    assert (output(model, GIVEN) - before).abs().max() > 1e-5
    assert attached.spec == CATALOG[name]


def test_an_unchanged_spec_keeps_its_other_options_and_is_a_fixed_point() -> None:
    spec = AttentionSpec(
        slots=(KeySlot(value="learned", shared=True),),
        output=(HeadGate(reads="all", mlp_width=3), ElementGate(openness=0.8)),
        mask=Causal() & Window(9),
    )
    started = unchanged(spec)
    assert started.slots == (KeySlot(value="learned", shared=True, initial_logit=CLOSED),)
    assert started.output[0] == HeadGate(reads="all", mlp_width=3, relative=True, initial_std=0.0)
    assert started.output[1] == ElementGate(openness=0.8, relative=True, initial_std=0.0)
    assert (started.mask, unchanged(started)) == (spec.mask, started)
    assert AttentionSpec.from_dict(json.loads(json.dumps(started.to_dict()))) == started
    assert changes(started) == ("mask (causal & window(9))",)
    assert set(changes(spec)) == {"key", "head_gate", "element_gate", "mask (causal & window(9))"}


def test_a_gate_that_starts_open_learns_at_once() -> None:
    model = host("llama")
    ss.attach(model, "gated_head")
    parameters = ss.trainable_only(model, "operation")
    model(**GIVEN, labels=GIVEN["input_ids"]).loss.backward()
    assert all(parameter.grad is not None and bool(parameter.grad.any()) for parameter in parameters.values())


def test_a_seed_decides_random_starts_and_nothing_else() -> None:
    states = []
    for seed in (5, 5, 6):
        model = host("llama")
        before = torch.get_rng_state()
        ss.attach(model, "kv_bias", seed=seed)
        assert torch.equal(torch.get_rng_state(), before)
        states.append(model.model.layers[1].self_attn.operation.slot_modules[0].key.detach())
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


def test_the_record_says_it_in_a_line() -> None:
    line = str(ss.attach(host("llama"), "gated_head"))
    assert re.fullmatch(
        r"gated_head attention, unchanged at the start \(logits moved by up to \S+, predictions by \S+ nats, on random "
        r"inputs\)",
        line,
    )
    attached = ss.attach(host("llama"), "softmax_off_by_one", layers=[1], inputs=GIVEN)
    assert str(attached).startswith("softmax_off_by_one attention in layers 1, from the start changed by zero (logits ")
    assert str(attached).endswith("on inputs)")
    assert str(dataclasses.replace(attached, shift=None)).endswith("changed by zero")
