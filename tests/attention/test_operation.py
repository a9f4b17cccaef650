"""What holds for every operation: no leak, true gradients, padding, documents, empty rows, huge logits, row chunks."""

from __future__ import annotations

from itertools import product

import pytest
import torch

import sinkscope.attention as zoo
from sinkscope.errors import InputError

from .problems import DIM, HEADS, assert_close, bound, problem
from .variants import MASKED, VARIANTS

PATHS = ["reference", "fast"]


def assert_no_leak(case, mask: str, path: str) -> None:
    """Exactly zero gradients with respect to keys and values that a query does not see, and all later inputs."""
    tokens = case.key.shape[2]
    visibility = bound(mask, tokens)
    output = case.attend(mask=visibility, path=path).output
    place = tokens // 2
    read = [case.key, case.value, *([case.hidden] if case.spec.needs_hidden else [])]
    found = torch.autograd.grad(output[:, :, place].square().sum(), read)
    keys, values = (gradient.abs().sum((1, 3)) for gradient in found[:2])
    sees = visibility.dense()[:, 0, place].expand(2, -1)
    assert keys[~sees].sum() == 0
    assert values[~sees].sum() == 0
    assert (values[sees] > 0).any()
    if case.spec.needs_hidden:
        last = max(int(sees.nonzero()[:, 1].max()), place)
        assert found[2][:, last + 1 :].abs().sum() == 0


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("variant", "mask", "kv_heads"), MASKED, ids=str)
def test_no_future_leak(variant, mask, kv_heads):
    for length in (1, 7, 45):  # one token; one block; several of each path
        for path in PATHS:
            assert_no_leak(problem(variant.spec, tokens=length, kv_heads=kv_heads), mask, path)


def assert_true_gradients(spec: zoo.AttentionSpec, tokens: int, mask: str, kv_heads: int) -> None:
    if isinstance(spec.value_gate, zoo.ValueGradient):
        pytest.skip("its gradient differs from its forward pass on purpose; tests of the gates have its formula")
    case = problem(spec, tokens=tokens, kv_heads=kv_heads, dtype=torch.float64)

    def run(*tensors: torch.Tensor) -> torch.Tensor:
        return case.with_inputs(tensors).attend(mask=bound(mask, tokens), path="reference").output

    assert torch.autograd.gradcheck(run, case.inputs, fast_mode=True)


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "mask", "kv_heads"), MASKED, ids=str)
def test_gradients_of_the_reference(variant, mask, kv_heads):
    assert_true_gradients(variant.spec, 7, mask, kv_heads)


@pytest.mark.slow
def test_gradients_of_one_and_two_tokens(variant):
    for length in (1, 2):
        assert_true_gradients(variant.spec, length, "causal", 2)


@pytest.mark.slow
def test_a_row_that_sees_nothing_is_zero(variant):
    """Its weights, on tokens and slots, and its output before what follows aggregation; gradients stay finite."""
    case = problem(variant.spec, tokens=5)
    allowed = torch.ones(5, 5, dtype=torch.bool).tril()
    allowed[2] = False
    if variant.spec.first_key is not None or variant.spec.decay is not None:
        # A boolean mask says neither where a row begins nor what stands between a query and a key.
        with pytest.raises(InputError, match="pass a mask value"):
            case.attend(mask=allowed)
        return
    expected = torch.zeros(2, HEADS, 1, DIM)
    expected = case.built().leaving(expected, case.hidden[:, 2:3], case.value[:, :, 2:3])
    for path in ("reference", "fast", "chunked"):
        attended = case.attend(mask=allowed, path=path)
        assert torch.equal(attended.output[:, :, 2:3], expected)
        if attended.weights is not None:
            assert attended.weights[:, :, 2].abs().sum() == attended.slot_weights[:, :, 2].abs().sum() == 0
        _, gradients = case.gradients(mask=allowed, path=path)
        assert all(torch.isfinite(gradient).all() for gradient in gradients)


def test_padded_rows_equal_the_row_alone(variant):
    case = problem(variant.spec, tokens=6)
    alone = case.part(slice(2, None), slice(0, 1)).attend(path="reference").output
    whole = case.attend(path="reference").output
    for side, kept in (([0, 0, 1, 1, 1, 1], slice(2, None)), ([1, 1, 1, 1, 0, 0], slice(0, 4))):
        bound = zoo.Visibility.of(zoo.Causal(), 6, 6, attention_mask=torch.tensor([side, [1] * 6]))
        expected = alone if kept.start else whole[:1, :, :4]
        for path in PATHS:
            output = case.attend(mask=bound, path=path).output
            assert_close(output[:1, :, kept], expected)
            assert_close(output[1:], whole[1:])


@pytest.mark.slow
def test_packed_documents_equal_documents_alone(variant):
    case = problem(variant.spec, tokens=8)
    numbers = torch.tensor([[4, 4, 4, 1, 1, 2, 2, 2]]).expand(2, -1)
    packed = zoo.Visibility.of(zoo.Causal() & zoo.Document(), 8, 8, documents=numbers)
    for path in PATHS:
        output = case.attend(mask=packed, path=path).output
        for part in (slice(0, 3), slice(3, 5), slice(5, 8)):
            assert_close(output[:, :, part], case.part(part).attend(path="reference").output)


@pytest.mark.parametrize(("variant", "size"), list(product(VARIANTS, [1e4, -1e4])), ids=str)
def test_huge_logits_stay_finite(variant, size):
    case = problem(variant.spec, tokens=6)
    with torch.no_grad():
        case.query.mul_(size)
    for path in PATHS:
        output, gradients = case.gradients(path=path)
        assert torch.isfinite(output).all()
        assert all(torch.isfinite(gradient).all() for gradient in gradients)


def test_rows_of_the_weights(variant):
    """`weights` in row chunks equals the whole map, also where a window keeps first keys out of reach of a chunk; the
    reference used that map."""
    case = problem(variant.spec, tokens=9)
    operation = case.built()
    query, key = operation.before_rotation(case.query, case.key)
    _, carried = operation.before_cache(case.value, case.hidden)
    for mask in (bound("causal", 9), bound("window", 9)):
        given = {"hidden": case.hidden, "carried": carried, "visibility": mask}
        whole = operation.weights(query, key, **given)
        parts = [operation.weights(query, key, rows=slice(start, start + 4), **given) for start in (0, 4, 8)]
        assert_close(torch.cat([part.token for part in parts], 2), whole.token)
        assert_close(torch.cat([part.slot for part in parts], 2), whole.slot)
        attended = case.attend(mask=mask, path="reference")
        assert torch.equal(attended.weights, whole.token)
        assert torch.equal(attended.slot_weights, whole.slot)


def test_bfloat16_computes_in_float32(variant):
    case = problem(variant.spec, tokens=12)
    half, wide = (
        case.with_inputs(tuple(x.detach().bfloat16().to(dtype) for x in case.inputs))
        for dtype in (torch.bfloat16, torch.float32)
    )
    expected = wide.attend(path="reference").output
    for path in PATHS:
        found = half.attend(path=path).output
        assert found.dtype == torch.bfloat16
        assert_close(found.float(), expected, 0.05)


def test_every_learned_part_gets_a_gradient(variant):
    case = problem(variant.spec, tokens=7)
    for name, gradient in zip(case.parameters, case.gradients()[1][-len(case.parameters) :], strict=False):
        assert gradient.abs().max() > 0, name


def test_the_variants_are_as_many_as_they_should_be():
    assert len({variant.spec for variant in VARIANTS}) == len(VARIANTS)
