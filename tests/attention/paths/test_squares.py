"""Masks that are made of causal squares go to the kernel as such, with the values and gradients of the reference."""

from __future__ import annotations

import pytest
import torch

import sinkscope.attention as zoo
from sinkscope.attention.masks import Strict
from sinkscope.attention.paths import flash
from sinkscope.attention.paths.flash import Square, squares_of

CAUSAL = zoo.Causal()
LENGTH = 131


def bound(mask: zoo.Mask, documents: list[int] | None = None, padded: int = 0, right: int = 0) -> zoo.Visibility:
    real = torch.ones(1, LENGTH, dtype=torch.long)
    real[:, :padded] = 0
    real[:, LENGTH - right :] = 0
    numbers = (
        None
        if documents is None
        else torch.tensor(documents).repeat_interleave(
            torch.tensor(
                [LENGTH // len(documents)] * (len(documents) - 1)
                + [LENGTH - LENGTH // len(documents) * (len(documents) - 1)]
            )
        )[None]
    )
    return zoo.Visibility.of(mask, LENGTH, LENGTH, documents=numbers, attention_mask=real if padded or right else None)


MADE = {
    "one document": (lambda: bound(CAUSAL & zoo.Document(), [7]), [Square(0, 131, 1)]),
    "two documents": (lambda: bound(CAUSAL & zoo.Document(), [3, 5]), [Square(0, 65, 1), Square(65, 131, 66)]),
    "a prefix": (lambda: bound(CAUSAL | zoo.VisiblePrefix(9)), [Square(0, 131, 9)]),
    "a prefix of everything": (lambda: bound(CAUSAL | zoo.VisiblePrefix(500)), [Square(0, 131, 131)]),
    "left padding": (lambda: bound(CAUSAL, padded=33), [Square(33, 131, 34)]),
    "right padding": (lambda: bound(CAUSAL, right=20), [Square(0, 111, 1)]),
    "padding and a prefix": (lambda: bound(CAUSAL | zoo.VisiblePrefix(9), padded=33), [Square(33, 131, 42)]),
    "padding and two documents": (
        lambda: bound(CAUSAL & zoo.Document(), [3, 5], padded=5),
        [Square(5, 65, 6), Square(65, 131, 66)],
    ),
}
OTHERS = {
    "a window": lambda: bound(CAUSAL & zoo.Window(7)),
    "a window that the last query's reach leaves": lambda: bound(CAUSAL & zoo.Window(LENGTH - 1)),
    "documents that come back": lambda: bound(CAUSAL & zoo.Document(), [3, 5, 3]),
    "a window or a prefix": lambda: bound(CAUSAL & (zoo.Window(7) | zoo.VisiblePrefix(2))),
    "no diagonal": lambda: bound(CAUSAL & Strict()),
    "many small documents": lambda: bound(CAUSAL & zoo.Document(), list(range(30))),
    "both ways": lambda: bound(zoo.Full() & zoo.Document(), [3, 5]),
}


@pytest.mark.parametrize("name", MADE)
def test_squares_are_found(name: str) -> None:
    make, expected = MADE[name]
    assert squares_of(make()) == [expected]


@pytest.mark.parametrize("name", OTHERS)
def test_other_masks_are_none(name: str) -> None:
    assert squares_of(OTHERS[name]()) is None


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["softmax", "sink_logit"])
@pytest.mark.parametrize("name", [*MADE, *OTHERS, "samples that differ"])
def test_equals_the_reference(name: str, operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash, "ROWS", 64)
    batch = 2
    if name == "samples that differ":
        real = torch.ones(batch, LENGTH, dtype=torch.long)
        real[0, :17] = 0
        real[1, 90:] = 0
        visibility = zoo.Visibility.of(CAUSAL, LENGTH, LENGTH, attention_mask=real)
        assert squares_of(visibility) == [[Square(17, 131, 18)], [Square(0, 90, 1)]]
    else:
        visibility = MADE[name][0]() if name in MADE else OTHERS[name]()
    built = zoo.CATALOG[operation].build(heads=4, kv_heads=2, head_dim=8, hidden_size=32)
    for dtype, tolerance in ((torch.float32, 3e-5), (torch.float64, 1e-12)):
        built = built.to(dtype)
        shapes = [(batch, heads, LENGTH, 8) for heads in (4, 2, 2)]
        inputs = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]
        upstream = torch.randn(shapes[0], dtype=dtype)
        outputs = [built(*inputs, visibility, path=path).output for path in ("sdpa", "reference")]
        learned = [*inputs, *built.parameters()]
        found, expected = (torch.autograd.grad(output, learned, upstream) for output in outputs)
        for one, other in zip((outputs[0], *found), (outputs[1], *expected), strict=True):
            torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)


def test_a_sample_without_tokens_has_no_output() -> None:
    real = torch.ones(2, LENGTH, dtype=torch.long)
    real[1] = 0
    visibility = zoo.Visibility.of(CAUSAL, LENGTH, LENGTH, attention_mask=real)
    query = torch.randn(2, 2, LENGTH, 8, requires_grad=True)
    output = (
        zoo.CATALOG["softmax"]
        .build(heads=2, kv_heads=2, head_dim=8, hidden_size=16)(query, query, query, visibility)
        .output
    )
    assert not output[1].any()
    [gradient] = torch.autograd.grad(output.square().sum(), query)
    assert gradient.isfinite().all()
    assert not gradient[1].any()


def test_one_document_is_the_triangle_bit_for_bit() -> None:
    operation = zoo.CATALOG["softmax"].build(heads=2, kv_heads=2, head_dim=8, hidden_size=16)
    query = torch.randn(1, 2, LENGTH, 8)
    outputs = [operation(query, query, query, seen).output for seen in (bound(CAUSAL), MADE["one document"][0]())]
    assert torch.equal(*outputs)
