"""Every catalogue entry against an independent loop, and the fast path against the reference."""

from __future__ import annotations

import math

import pytest
import torch

import sinkscope.attention as zoo
from sinkscope.errors import InputError

from .problems import Problem, problem

MASKS = {
    "causal": zoo.Causal(),
    "window": zoo.Causal() & zoo.Window(5),
    "prefix": zoo.Causal() | zoo.Prefix(3),
    "full": zoo.Full(),
    "without": zoo.Causal() & zoo.Without((0, 2)),
    "alone": zoo.Causal() & zoo.Alone((3, 6)),
}
LENGTHS = [1, 2, 7, 63, 130]


def by_hand(case: Problem, mask: zoo.Mask, batch: int, head: int, row: int) -> torch.Tensor:
    """The output of one query, from the catalogue's formula with scalar loops."""
    case = Problem(
        case.spec, *(x.detach() for x in case.inputs[:3]), {n: p.detach() for n, p in case.parameters.items()}
    )
    dim, keys = case.query.shape[-1], case.key.shape[2]
    group = head // (case.query.shape[1] // case.key.shape[1])
    query = case.query[batch, head, row]
    order = row + keys - case.query.shape[2]
    sees = {
        "causal": lambda k: k <= order,
        "window": lambda k: order - 5 < k <= order,
        "prefix": lambda k: k <= order or k < 3,
        "full": lambda k: True,
        "without": lambda k: k <= order and (k not in (0, 2) or k == order),
        "alone": lambda k: k == order if order in (3, 6) else k <= order,
    }[next(name for name, value in MASKS.items() if value == mask)]
    visible = [k for k in range(keys) if sees(k)]
    scores = [float(query @ case.key[batch, group, k]) / math.sqrt(dim) for k in visible]
    values = [case.value[batch, group, k] for k in visible]
    parameters = case.parameters
    for slot in case.spec.slots:
        if slot.kind == "zero":
            scores.append(0.0)
        elif slot.kind == "logit":
            scores.append(float(parameters["slot_modules.0.logit"][head]))
        else:
            scores.append(float(query @ parameters["slot_modules.0.key"][group]) / math.sqrt(dim))
        learned = "slot_modules.0.value" in parameters
        values.append(parameters["slot_modules.0.value"][group] if learned else torch.zeros(dim))
    if case.spec.normalizer.kind == "softmax":
        weights = [math.exp(s) for s in scores]
        weights = [w / sum(weights) for w in weights]
    else:
        weights = [1 / (1 + math.exp(-s)) for s in scores]
        weights = [w / (sum(weights) + 1e-8) for w in weights] if case.spec.normalizer.normalized else weights
    output = sum(w * v for w, v in zip(weights, values, strict=True))
    bias = parameters.get("output_modules.0.value")
    return output if bias is None else output + bias[head]


@pytest.mark.parametrize("mask", MASKS)
def test_reference_is_the_formula(spec, mask):
    case = problem(spec, queries=9)
    output = case.attend(mask=MASKS[mask], path="reference").output
    for batch, head, row in [(0, 0, 0), (1, 3, 8), (0, 2, 5), (1, 1, 6)]:
        torch.testing.assert_close(output[batch, head, row], by_hand(case, MASKS[mask], batch, head, row))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("length", LENGTHS)
def test_fast_equals_reference(spec, length, kv_heads, mask):
    case = problem(spec, queries=length, kv_heads=kv_heads)
    if zoo.explain(spec).path == "reference":
        with pytest.raises(InputError, match="no exact fast path"):
            case.attend(path="fast")
        return
    _assert_same(case, mask=MASKS[mask])


@pytest.mark.parametrize("queries", [1, 4])
def test_fewer_queries_than_keys_are_the_last_ones(spec, queries):
    case = problem(spec, queries=9)
    whole = case.attend(path="reference").output[:, :, -queries:]
    part = Problem(spec, case.query[:, :, -queries:], case.key, case.value, case.parameters)
    torch.testing.assert_close(part.attend().output, whole)


def test_no_future_leak(spec):
    """The gradient of an output with respect to later keys and values is exactly zero, on both paths."""
    case = problem(spec, queries=7)
    for path in ("reference", "auto"):
        output = case.attend(path=path).output
        keys, values = torch.autograd.grad(output[:, :, 3].sum(), [case.key, case.value], retain_graph=True)
        assert keys[:, :, 4:].abs().max() == 0
        assert values[:, :, 4:].abs().max() == 0
        assert values[:, :, :4].abs().min() > 0


def test_gradients_of_the_reference(spec):
    case = problem(spec, queries=4, batch=1, dtype=torch.float64)

    def run(*tensors: torch.Tensor) -> torch.Tensor:
        parameters = dict(zip(case.parameters, tensors[3:], strict=True))
        return Problem(spec, *tensors[:3], parameters).attend(path="reference").output

    assert torch.autograd.gradcheck(run, case.inputs)


def test_a_row_that_sees_nothing_is_zero(spec):
    case = problem(spec, queries=5)
    allowed = torch.ones(5, 5, dtype=torch.bool).tril()
    allowed[2] = False
    bias = "output_modules.0.value"
    for path in ("reference", "auto"):
        output = case.attend(mask=allowed, path=path).output
        expected = case.parameters[bias][None] if bias in case.parameters else torch.zeros(1, 4, 6)
        assert torch.equal(output[:, :, 2], expected.expand(2, -1, -1))
        gradients = torch.autograd.grad(output.sum(), case.inputs)
        assert all(torch.isfinite(gradient).all() for gradient in gradients)


def test_padding_rows_equal_the_row_alone(spec):
    case = problem(spec, queries=6)
    real = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    bound = zoo.Visibility.of(zoo.Causal(), 6, 6, attention_mask=real)
    alone = Problem(spec, case.query[:1, :, 2:], case.key[:1, :, 2:], case.value[:1, :, 2:], case.parameters)
    for path in ("reference", "auto"):
        output = case.attend(mask=bound, path=path).output
        torch.testing.assert_close(output[:1, :, 2:], alone.attend(path="reference").output)
        torch.testing.assert_close(output[1:], case.attend(path="reference").output[1:])


def test_packed_documents_equal_documents_alone(spec):
    case = problem(spec, queries=8)
    documents = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2]]).expand(2, -1)
    bound = zoo.Visibility.of(zoo.Causal() & zoo.Document(), 8, 8, documents=documents)
    for path in ("reference", "auto"):
        output = case.attend(mask=bound, path=path).output
        for part in (slice(0, 3), slice(3, 5), slice(5, 8)):
            alone = Problem(spec, *(x[:, :, part] for x in (case.query, case.key, case.value)), case.parameters)
            torch.testing.assert_close(output[:, :, part], alone.attend(path="reference").output)


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_huge_logits_stay_finite(spec, size):
    case = problem(spec, queries=6)
    for path in ("reference", "auto"):
        big = Problem(spec, case.query * size, case.key, case.value, case.parameters)
        output = big.attend(path=path).output
        assert torch.isfinite(output).all()
        assert all(torch.isfinite(gradient).all() for gradient in torch.autograd.grad(output.sum(), case.inputs))


def test_rows_of_the_weights(spec):
    """`weights` in row chunks equals the whole map; softmax rows sum to one over slots and tokens."""
    case = problem(spec, queries=9)
    operation = spec.build(heads=4, kv_heads=2, head_dim=6, hidden_size=24)
    operation.load_state_dict(case.parameters)
    whole = operation.weights(case.query, case.key)
    parts = [operation.weights(case.query, case.key, rows=slice(a, a + 4)) for a in (0, 4, 8)]
    torch.testing.assert_close(torch.cat([part.token for part in parts], 2), whole.token)
    torch.testing.assert_close(torch.cat([part.slot for part in parts], 2), whole.slot)
    attended = case.attend(path="reference")
    torch.testing.assert_close(attended.weights, whole.token)
    if spec.normalizer.kind == "softmax":
        torch.testing.assert_close(whole.token.sum(-1) + whole.slot.sum(-1), torch.ones(2, 4, 9))
        assert attended.lse is not None


def test_bfloat16_computes_in_float32(spec):
    case = problem(spec, queries=12)
    half = Problem(spec, *(x.bfloat16() for x in (case.query, case.key, case.value)), case.parameters)
    wide = Problem(spec, *(x.float() for x in (half.query, half.key, half.value)), case.parameters)
    torch.testing.assert_close(half.attend(path="reference").weights, wide.attend(path="reference").weights)
    assert half.attend().output.dtype == torch.bfloat16


def test_every_learned_part_gets_a_gradient_or_none_by_design(spec):
    case = problem(spec, queries=5)
    gradients = torch.autograd.grad(case.attend().output.square().sum(), list(case.parameters.values()) or [case.query])
    assert all(gradient.abs().max() > 0 for gradient in gradients)


def _assert_same(case: Problem, **kwargs) -> None:
    reference, fast = (case.attend(path=path, **kwargs).output for path in ("reference", "fast"))
    torch.testing.assert_close(fast, reference, atol=1e-5, rtol=1e-5)
    direction = torch.randn_like(reference)
    expected = torch.autograd.grad((reference * direction).sum(), case.inputs)
    found = torch.autograd.grad((fast * direction).sum(), case.inputs)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)
