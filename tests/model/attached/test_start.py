"""What starts unchanged does, over the whole catalog; what cannot is named."""

from __future__ import annotations

import json

import pytest
import torch

import sinkscope as ss
from sinkscope.attention import CATALOG, AttentionSpec, Causal, ElementGate, HeadGate, KeySlot, Window
from sinkscope.model.attached import changes, unchanged
from tests.model.attached.hosts import host, inputs, output
from tests.model.attached.test_catalog import NAMES

GIVEN = inputs("llama")
STARTS_EQUAL = {
    *("softmax", "sink_logit", "kv_bias", "kv_bias_shared", "k_bias", "k_bias_shared", "k_bias_fixed_v"),
    *("k_bias_lowrank", "v_bias", "gated_head", "gated_elementwise", "gated_value"),
}


def test_what_can_start_equal() -> None:
    assert {name for name in NAMES if changes(unchanged(CATALOG[name])) == ()} == STARTS_EQUAL


@pytest.mark.parametrize("name", NAMES)
def test_the_model_is_changed_exactly_where_a_piece_is_named(name: str) -> None:
    model = host("llama")
    before = output(model, GIVEN)
    attached = ss.attach(model, name)
    difference = float((output(model, GIVEN) - before).abs().max())
    assert (difference < 1e-5) == (attached.changes == ()), difference


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
    assert started.slots == (KeySlot(value="learned", shared=True, initial_logit=-30.0),)
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
    assert str(ss.attach(host("llama"), "gated_head")) == "gated_head attention, unchanged at the start"
    line = str(ss.attach(host("llama"), "softmax_off_by_one"))
    assert line == "softmax_off_by_one attention, from the start changed by zero"
