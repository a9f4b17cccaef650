"""Identities of what acts on values and outputs: value biases and gates."""

from __future__ import annotations

import math

import pytest
import torch

import sinkscope.attention as zoo

from .problems import DIM, HEADS, Problem, assert_close, build, problem

WIDTH = HEADS * DIM
BIAS, WEIGHT = "output_modules.0.bias", "output_modules.0.weight"
HEAD_GATES = [{}, {"reads": "all"}, {"reads": "nothing"}, {"mlp_width": 3}, {"reads": "all", "mlp_width": 3}]
GATES = [("gated_head", options) for options in HEAD_GATES] + [
    ("gated_elementwise", {}),
    ("gated_value", {}),
    ("gated_value", {"per_head": True}),
    ("gated_by_value", {}),
    ("gated_by_value", {"at": "output"}),
]


def plain(case: Problem) -> torch.Tensor:
    return zoo.attend(case.query, case.key, case.value, "softmax", path="reference").output


def gate_of(case: Problem) -> torch.nn.Module:
    """The module that gates, holding the problem's own parameter tensors."""
    operation = build(case.spec)
    gate = operation.value_gate if operation.value_gate is not None else operation.output_modules[0]
    prefix = "value_gate." if operation.value_gate is not None else "output_modules.0."
    for name, parameter in case.parameters.items():
        dict(gate.named_parameters())[name.removeprefix(prefix)].data = parameter.data
    return gate


def test_value_bias_leaves_the_weights_alone():
    case = problem(zoo.CATALOG["v_bias"], tokens=8)
    softmax = zoo.attend(case.query, case.key, case.value, "softmax", path="reference")
    biased = case.attend(path="reference")
    assert torch.equal(biased.weights, softmax.weights)
    bias = case.parameters["output_modules.0.value"][None, :, None]
    torch.testing.assert_close(biased.output, softmax.output + bias)


def test_a_value_bias_on_normalised_rows_is_a_bias_on_every_value():
    case = problem(zoo.CATALOG["v_bias"], tokens=8, kv_heads=4)
    shifted = case.value + case.parameters["output_modules.0.value"][None, :, None]
    assert_close(case.attend().output, zoo.attend(case.query, case.key, shifted, "softmax").output)


@pytest.mark.parametrize(("name", "options"), GATES)
def test_a_gate_wide_open_is_none(name, options):
    """Bias +30."""
    case = problem(zoo.ENTRIES[name].make(**options), tokens=6)
    with torch.no_grad():
        for parameter in gate_of(case).parameters():
            parameter.zero_()
        gate_of(case).bias.fill_(30)
    for path in ("reference", "fast"):
        assert_close(case.attend(path=path).output, plain(case))


@pytest.mark.parametrize(("name", "options"), GATES)
def test_a_gate_that_is_shut_removes_the_head(name, options):
    case = problem(zoo.ENTRIES[name].make(**options), tokens=6)
    with torch.no_grad():
        gate_of(case).bias.fill_(-200)
    assert case.attend().output.abs().max() < 1e-20


@pytest.mark.parametrize("openness", [0.25, 0.5, 0.97])
@pytest.mark.parametrize(("name", "options"), [gate for gate in GATES if gate[0] != "gated_by_value"])
def test_the_gate_at_zero_input_is_its_openness(name, options, openness):
    """g = π where x = 0, by starting values alone."""
    operation = build(zoo.ENTRIES[name].make(openness=openness, **options))
    case = problem(zoo.CATALOG["softmax"], tokens=6)
    hidden = torch.zeros(2, 6, WIDTH)
    value, _ = operation.before_cache(case.value, hidden)
    assert_close(operation(case.query, case.key, value, hidden=hidden).output, openness * plain(case))


@pytest.mark.parametrize("piece", [zoo.HeadGate, zoo.ElementGate])
def test_a_relative_gate_starts_as_no_gate(piece):
    """Divided by its openness, with weights from zero: the function is unchanged at the start (their fine-tuning)."""
    spec = zoo.AttentionSpec(output=(piece(openness=0.25, initial_std=0, relative=True),))
    case = problem(zoo.CATALOG["softmax"], tokens=6)
    hidden = torch.randn(2, 6, WIDTH)
    assert_close(build(spec)(case.query, case.key, case.value, hidden=hidden).output, plain(case))
    assert build(spec).state_dict()[BIAS].unique().item() == pytest.approx(math.log(1 / 3))


def test_a_gate_reads_its_own_value():
    """Gates of zero weight and bias are ½; with one weight, each token's value or output is gated by that channel."""
    for at in ("value", "output"):
        operation, case = build(zoo.ENTRIES["gated_by_value"].make(at=at)), problem(zoo.CATALOG["softmax"], tokens=6)
        gate = operation.value_gate if at == "value" else operation.output_modules[0]
        with torch.no_grad():
            gate.weight.zero_()
            gate.weight[:, 1] = 3
        opened = torch.sigmoid(3 * case.value[..., 1:2])
        value, _ = operation.before_cache(case.value, None)
        expected = zoo.attend(case.query, case.key, opened * case.value, "softmax").output
        expected = expected if at == "value" else plain(case) * opened.repeat_interleave(2, 1)
        assert_close(operation(case.query, case.key, value).output, expected)


def test_a_relative_value_gate_starts_as_no_gate():
    operation = build(zoo.AttentionSpec(value_gate=zoo.ValueGate(openness=0.8, initial_std=0, relative=True)))
    value = torch.randn(2, 2, 6, DIM)
    assert_close(operation.before_cache(value, torch.randn(2, 6, WIDTH))[0], value)


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("gated_head", {}, HEADS * (DIM + 1)),  # shared over tokens: H · (d_h + 1)
        ("gated_head", {"reads": "all"}, HEADS * (WIDTH + 1)),
        ("gated_head", {"reads": "nothing"}, HEADS),
        ("gated_head", {"mlp_width": 2}, HEADS * (2 * DIM + 2 + 1)),
        ("gated_elementwise", {}, WIDTH * (WIDTH + 1)),
        ("gated_value", {}, 2 * DIM * (WIDTH + 1)),
        ("gated_value", {"per_head": True}, 2 * (WIDTH + 1)),
    ],
)
def test_what_gates_learn(name, options, count):
    assert sum(p.numel() for p in build(zoo.ENTRIES[name].make(**options)).parameters()) == count


def test_a_head_reads_its_own_slice_alone():
    case = problem(zoo.CATALOG["gated_head"], tokens=4)
    output = case.attend().output
    for head in range(HEADS):
        (gradient,) = torch.autograd.grad(output[:, head].sum(), case.hidden, retain_graph=True)
        inside = slice(head * DIM, (head + 1) * DIM)
        assert (gradient[..., inside] != 0).all()
        assert gradient[..., : head * DIM].abs().sum() + gradient[..., (head + 1) * DIM :].abs().sum() == 0


def test_a_gate_reads_its_own_token():
    """At the query for gates of outputs; at the value's token, whoever attends to it, for gates of values."""
    for name, seen in (("gated_head", [2]), ("gated_elementwise", [2]), ("gated_value", [0, 1, 2])):
        case = problem(zoo.CATALOG[name], tokens=4)
        (gradient,) = torch.autograd.grad(case.attend().output[:, :, 2].sum(), case.hidden)
        assert gradient.abs().sum((0, 2)).nonzero().flatten().tolist() == seen


def test_gated_values_attend_as_they_are():
    """The weights are those of a softmax; the cache holds gated values."""
    case = problem(zoo.CATALOG["gated_value"], tokens=5)
    softmax = zoo.attend(case.query, case.key, case.value, "softmax", path="reference")
    attended = case.attend(path="reference")
    assert torch.equal(attended.weights, softmax.weights)
    gated, carried = case.built().before_cache(case.value, case.hidden)
    assert carried is None
    assert_close(attended.output, zoo.attend(case.query, case.key, gated, "softmax").output)


def test_outputs_act_in_the_order_they_are_written():
    case = problem(zoo.AttentionSpec(output=(zoo.ValueBias(), zoo.HeadGate(reads="nothing"))), tokens=4)
    gate = torch.sigmoid(case.parameters["output_modules.1.bias"])[None, :, None, None]
    bias = case.parameters["output_modules.0.value"][None, :, None]
    assert_close(case.attend().output, gate * (plain(case) + bias))


def test_gates_of_values_and_of_outputs_at_once_with_fewer_queries_than_keys():
    spec = zoo.AttentionSpec(value_gate=zoo.ValueGate(), output=(zoo.ElementGate(),), decay=zoo.ForgettingGate())
    case = problem(spec, tokens=7)
    assert_close(case.last(3).attend().output, case.attend().output[:, :, -3:])
