"""Slots through the log-sum-exp of the CPU's flash kernel."""

from __future__ import annotations

import pytest
import torch

import sinkscope.attention as zoo
from sinkscope.attention.paths import flash
from sinkscope.errors import InputError

KEYED = zoo.KeySlot(value="learned", initial_logit=0.3)
SPECS = {
    "sink logit": zoo.CATALOG["sink_logit"],
    "stable mask": zoo.CATALOG["stable_mask"],
    "key, value and logit": zoo.AttentionSpec(slots=(KEYED,)),
    "two slots": zoo.AttentionSpec(slots=(KEYED, zoo.LogitSlot(initial=0.5))),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("mask", [zoo.Causal(), zoo.Full()])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_equals_the_reference(name, mask, kv_heads, monkeypatch):
    ran = []
    kernel = flash.attention
    monkeypatch.setattr(flash, "attention", lambda *args: ran.append(1) or kernel(*args))
    operation = SPECS[name].build(heads=4, kv_heads=kv_heads, head_dim=8, hidden_size=32)
    for dtype, tolerance in ((torch.float32, 2e-5), (torch.float64, 1e-12)):
        operation = operation.to(dtype)
        for tokens in (1, 7, 130):
            shapes = [(2, heads, tokens, 8) for heads in (4, kv_heads, kv_heads)]
            inputs = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]
            visibility, upstream = zoo.Visibility.of(mask, tokens, tokens), torch.randn(shapes[0], dtype=dtype)
            outputs = [operation(*inputs, visibility, path=path).output for path in ("sdpa", "reference")]
            learned = [*inputs, *operation.parameters()]
            found, expected = (torch.autograd.grad(output, learned, upstream) for output in outputs)
            for one, other in zip((outputs[0], *found), (outputs[1], *expected), strict=True):
                torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)
    assert len(ran) == 6


@pytest.mark.parametrize("logit", [-torch.inf, -1e4, 1e4])
def test_extreme_logits(logit):
    query = torch.randn(1, 4, 9, 8, requires_grad=True)
    learned = torch.full((4,), logit, requires_grad=True)
    output = zoo.attend(query, query, query, "sink_logit", {"slot_modules.0.logit": learned}).output
    expected = zoo.attend(query, query, query, "softmax").output if logit < 0 else torch.zeros_like(query)
    torch.testing.assert_close(output, expected)
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(output.sum(), [query, learned]))


def test_differentiating_twice_is_refused():
    query, logit = torch.randn(1, 4, 3, 8, requires_grad=True), torch.zeros(4)
    output = zoo.attend(query, query, query, "sink_logit", {"slot_modules.0.logit": logit}).output
    with pytest.raises(InputError, match="no second derivative"):
        torch.autograd.grad(output.sum(), query, create_graph=True)
