"""What an operation learns, and the values it starts from."""

from __future__ import annotations

import math

import pytest
import torch

import sinkscope.attention as zoo
from sinkscope.attention.pieces import Learned

from .problems import DIM, HEADS, build

WIDTH = HEADS * DIM
LEARNED = {  # numbers per layer with 4 heads, 2 key-value heads of width 8 and an input of width 32
    "sink_logit": HEADS,
    "first_key_logit": HEADS,
    "kernel_mlp": 2 * DIM * DIM,
    "kernel_mlp_normalized": 2 * DIM * DIM,
    "kv_bias": 2 * 2 * DIM,  # k* and v* for each key-value head
    "kv_bias_shared": 2 * DIM,
    "k_bias": 2 * DIM,
    "k_bias_shared": DIM,
    "k_bias_fixed_v": 2 * DIM,
    "k_bias_lowrank": 2,
    "v_bias": HEADS * DIM,
    "latent_sinks": 128 * 4 * DIM + 4 * DIM + 2 * (2 * DIM) * (4 * DIM),
    "gated_head": HEADS * (DIM + 1),
    "gated_elementwise": WIDTH * (WIDTH + 1),
    "gated_value": 2 * DIM * (WIDTH + 1),
    "qk_norm": 2 * DIM,
    "cosine": HEADS,
    "gated_by_value": 2 * (DIM + 1),
    "head_norm": HEADS * DIM,
    "scalable_softmax": HEADS,
    "forgetting_gate": HEADS * (WIDTH + 1),
    "differential": 4 * DIM // 2 + DIM,
}


def test_as_many_numbers_as_documented():
    counts = {name: sum(p.numel() for p in build(spec).parameters()) for name, spec in zoo.CATALOG.items()}
    assert {name: count for name, count in counts.items() if count} == LEARNED


def test_a_line_says_that_it_learns(spec):
    """`acts` names what is learned and where, or says that nothing is; no state beside parameters."""
    operation = build(spec)
    entry = zoo.ENTRIES[zoo.name_of(spec)]
    assert entry.acts.startswith("nothing is learned") == (not list(operation.parameters()))
    assert set(operation.state_dict()) == {name for name, _ in operation.named_parameters()}
    assert all(text.strip() for text in (entry.formula, entry.rows, entry.source, entry.acts, entry.effect))


def test_whatever_learns_can_reset_itself(variant):
    """Loaders initialise modules of type `Learned` alone: every parameter belongs to one, and none is left unset."""
    operation = build(variant.spec)
    owned = {id(p) for module in operation.modules() if isinstance(module, Learned) for p in module.parameters()}
    assert owned == {id(p) for p in operation.parameters()}
    torch.manual_seed(3)
    first = build(variant.spec).state_dict()
    with torch.no_grad():
        for parameter in operation.parameters():
            parameter.fill_(torch.nan)
    torch.manual_seed(3)
    for module in operation.modules():
        if isinstance(module, Learned):
            module.reset_parameters()
    for name, tensor in operation.state_dict().items():
        assert torch.equal(tensor, first[name]), name


def wide(name: str, **options) -> dict[str, torch.Tensor]:
    """Starting values of a large operation."""
    spec = zoo.ENTRIES[name].make(**options)
    return spec.build(heads=16, kv_heads=16, head_dim=64, hidden_size=1024).state_dict()


@pytest.mark.parametrize(
    ("name", "parameter", "std"),
    [
        ("kv_bias", "slot_modules.0.key", 0.02),
        ("kv_bias", "slot_modules.0.value", 0.02),
        ("v_bias", "output_modules.0.value", 0.02),
        ("latent_sinks", "slot_modules.0.latent", 0.02),
        ("latent_sinks", "slot_modules.0.key_map", 0.02),
        ("latent_sinks", "slot_modules.0.value_map", 0.02),
        ("kernel_mlp", "similarity.first", math.sqrt(2 / 5 / 64)),
        ("kernel_mlp", "similarity.second", math.sqrt(2 / 5 / 64)),
        ("gated_head", "output_modules.0.weight", 0.02),
        ("gated_elementwise", "output_modules.0.weight", 0.02),
        ("gated_value", "value_gate.weight", 0.02),
        ("forgetting_gate", "decay.weight", 0.02),
        ("differential", "difference.vectors", 0.1),
    ],
)
def test_random_starts(name, parameter, std):
    tensor = wide(name)[parameter]
    assert tensor.std().item() == pytest.approx(std, rel=0.15)
    assert abs(tensor.mean().item()) < std / 3


@pytest.mark.parametrize(
    ("name", "options", "parameter", "number"),
    [
        ("sink_logit", {}, "slot_modules.0.logit", 0),
        ("sink_logit", {"initial": -3.5}, "slot_modules.0.logit", -3.5),
        ("sink_logit", {"reads_input": True}, "slot_modules.0.weight", 0),
        ("first_key_logit", {"initial": 2.5}, "first_key.logit", 2.5),
        ("latent_sinks", {}, "slot_modules.0.gain", 1),
        ("gated_head", {"reads": 12, "initial_std": 0, "openness": 0.5}, "output_modules.0.weight", 0),
        ("gated_head", {}, "output_modules.0.bias", math.log(0.25 / 0.75)),
        ("gated_head", {"reads": "nothing", "openness": 0.5}, "output_modules.0.bias", 0),
        ("gated_elementwise", {"openness": 0.9}, "output_modules.0.bias", math.log(9)),
        ("gated_value", {"openness": 0.9}, "value_gate.bias", math.log(9)),
        ("qk_norm", {}, "query_key.query_gain", 1),
        ("qk_norm", {}, "query_key.key_gain", 1),
        ("scalable_softmax", {}, "temperature.scale", 1),
        ("scalable_softmax", {"initial": 0.43}, "temperature.scale", 0.43),
        ("forgetting_gate", {"openness": 0.9}, "decay.bias", math.log(9)),
        ("differential", {}, "difference.gain", 1),
    ],
)
def test_fixed_starts(name, options, parameter, number):
    assert wide(name, **options)[parameter].unique().tolist() == pytest.approx([number])


def test_a_hidden_layer_of_a_gate_is_alive_at_the_start():
    assert wide("gated_head", mlp_width=4)["output_modules.0.inner"].std().item() == pytest.approx(1 / 8, rel=0.1)
