"""The streamed path: its derivatives, its cuts, and what it refuses."""

from __future__ import annotations

import pytest
import torch

import sinkscope.attention as zoo
from sinkscope.attention.functional import DenseVisibility
from sinkscope.attention.normalizers.base import Differentiated
from sinkscope.attention.paths import blocks, streamed
from sinkscope.errors import InputError

STREAMED = {name: spec for name, spec in zoo.CATALOG.items() if streamed.obstacle(spec) is None}
FURTHER = {
    "clipped by length": zoo.ClippedSoftmax(alpha=0.8, zeta=1.03),
    "power above one": zoo.PowerSoftmax(p=2.0),
    "power of sigmoids below one": zoo.PowerSigmoid(p=0.5),
    "shifted sigmoid": zoo.Sigmoid(bias=-1.0, minus_log_n=True, normalized=True),
    "relu": zoo.Relu(over_n=False),
    "relu normalised": zoo.Relu(normalized=True),
    "linear over the sum": zoo.Linear(divisor="abs_sum"),
}
NORMALIZERS = {name: spec.normalizer for name, spec in STREAMED.items()} | FURTHER


@pytest.mark.parametrize("name", NORMALIZERS)
def test_slopes_are_those_of_the_weights(name):
    """The derivative beside each formula against autograd through the formula, in float64."""
    normalizer = NORMALIZERS[name]
    assert isinstance(normalizer, Differentiated)
    scores = torch.randn(3, 5, 7, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(3, 5, 7, dtype=torch.float64)
    count = torch.arange(3.0, 8.0, dtype=torch.float64)[:, None].expand(3, 5, 1)
    visible = torch.arange(7) < count
    weights = normalizer.weights(scores, visible, count)
    (expected,) = torch.autograd.grad(weights, scores, upstream)
    hidden = scores.detach().masked_fill(~visible, normalizer.hidden)
    split = normalizer.split(hidden, count)
    given = upstream if split.divisor is None else upstream / split.divisor
    delta = (given * weights).sum(-1, keepdim=True).detach()
    found = normalizer.slope(hidden, count, split, given.clone(), delta).masked_fill(~visible, 0.0)
    torch.testing.assert_close(found, expected)


def bound(mask: str, tokens: int) -> zoo.Visibility:
    causal = zoo.Causal()
    if mask == "padding":
        real = torch.ones(2, tokens)
        real[0, : tokens // 3] = 0
        return zoo.Visibility.of(causal & zoo.Window(9), tokens, tokens, attention_mask=real)
    if mask == "documents":
        documents = (torch.arange(tokens) // torch.tensor([[17], [40]])).long()
        return zoo.Visibility.of(causal & zoo.Document(), tokens, tokens, documents=documents)
    plain = {
        "causal": causal,
        "window": causal & zoo.Window(40),
        "prefix": causal | zoo.VisiblePrefix(3),
        "full": zoo.Full(),
    }
    return zoo.Visibility.of(plain[mask], tokens, tokens)


MASKS = ("causal", "window", "prefix", "full", "padding", "documents")


def both(spec: zoo.AttentionSpec, visibility: zoo.Visibility | None, tokens: int, kv_heads: int, dtype=torch.float32):
    """Outputs and gradients of the reference and of the streamed path."""
    shapes = [(2, 4, tokens, 8), (2, kv_heads, tokens, 8), (2, kv_heads, tokens, 8)]
    inputs = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]
    operation = spec.build(heads=4, kv_heads=kv_heads, head_dim=8, hidden_size=32).to(dtype)
    upstream = torch.randn(2, 4, tokens, 8, dtype=dtype)
    for path in ("reference", "streamed"):
        output = operation(*inputs, visibility, path=path).output
        yield [output, *torch.autograd.grad(output, [*inputs, *operation.parameters()], upstream)]


@pytest.mark.slow
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_equals_the_reference_over_several_blocks(mask, kv_heads, monkeypatch):
    """300 tokens in blocks that cut queries and heads."""
    monkeypatch.setattr(streamed, "CACHED", 300 * 128 * 3)
    for name in ("sigmoid_normalized", "softpick", "clipped_softmax", "kernel_mlp_normalized"):
        reference, found = both(STREAMED[name], bound(mask, 300), 300, kv_heads)
        for one, other in zip(found, reference, strict=True):
            torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("tokens", [1, 2, 7, 63, 130])
def test_equals_the_reference_at_odd_lengths(tokens):
    for spec in STREAMED.values():
        reference, found = both(spec, None, tokens, 2)
        for one, other in zip(found, reference, strict=True):
            torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", STREAMED)
def test_float64_stays(name):
    reference, found = both(STREAMED[name], None, 9, 2, torch.float64)
    for one, other in zip(found, reference, strict=True):
        torch.testing.assert_close(one, other, atol=1e-13, rtol=1e-12)


def test_queries_that_see_nothing_are_zero():
    query, key, value = (torch.randn(2, 2, 9, 4, requires_grad=True) for _ in range(3))
    allowed = torch.rand(9, 9) < 0.5
    allowed[4] = False
    for name, spec in STREAMED.items():
        if list(spec.build(heads=2, kv_heads=2, head_dim=4, hidden_size=8).parameters()):
            continue
        mask = DenseVisibility.out(allowed, query, key)
        output = zoo.attend(query, key, value, name, mask=mask, path="streamed").output
        assert not output[:, :, 4].any()
        (gradient,) = torch.autograd.grad(output.sum(), query)
        assert gradient.isfinite().all()
        assert not gradient[:, :, 4].any()


def test_causal_blocks_write_masks_on_the_diagonal_alone():
    parts = list(blocks.rows_of(zoo.Visibility.of(zoo.Causal(), 300, 300), 128))
    assert [part.keys for part in parts] == [slice(0, 128), slice(0, 256), slice(0, 300)]
    assert [part.hidden[-1][0] for part in parts] == [slice(1, 128), slice(129, 256), slice(257, 300)]
    windowed = list(blocks.rows_of(zoo.Visibility.of(zoo.Causal() & zoo.Window(40), 300, 300), 128))
    assert [part.keys for part in windowed] == [slice(0, 128), slice(89, 256), slice(217, 300)]


@pytest.mark.parametrize("mask", MASKS)
def test_what_is_out_of_reach_is_hidden_and_what_is_sure_is_seen(mask):
    visibility = bound(mask, 300)
    dense = visibility.dense()
    for start in range(0, 300, 60):
        rows = slice(start, start + 60)
        reach, unmasked = visibility.reach(rows), visibility.unmasked(rows)
        seen = dense[:, :, rows]
        assert not seen[..., : reach.start].any()
        assert not seen[..., reach.stop :].any()
        assert seen[..., unmasked].all()


def test_differentiating_twice_is_refused():
    query = torch.randn(1, 1, 3, 4, requires_grad=True)
    output = zoo.attend(query, query, query, "sigmoid", path="streamed").output
    with pytest.raises(InputError, match="no second derivative"):
        torch.autograd.grad(output.sum(), query, create_graph=True)


def test_autocast_around_the_backward_pass_changes_nothing():
    query = torch.randn(1, 2, 30, 4, requires_grad=True)
    expected, found = (zoo.attend(query, query, query, "sigmoid", path="streamed").output.sum() for _ in range(2))
    (plain,) = torch.autograd.grad(expected, query)
    with torch.autocast("cpu", torch.bfloat16):
        (under,) = torch.autograd.grad(found, query)
    assert torch.equal(under, plain)


@pytest.mark.parametrize("name", ["softmax_off_by_one", "forgetting_gate", "softmax"])
def test_refused_where_it_is_not_exact(name):
    query = torch.randn(1, 1, 3, 4)
    operation = zoo.CATALOG[name].build(heads=1, kv_heads=1, head_dim=4, hidden_size=4)
    _, carried = operation.before_cache(query, query[:, 0])
    with pytest.raises(InputError, match="no streamed path"):
        operation(query, query, query, carried=carried, path="streamed")
