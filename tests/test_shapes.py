"""What checks the shapes while tests run does find what does not agree."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from jaxtyping import Float, Int, TypeCheckError
from torch import Tensor

from sinkscope.attention import Softmax
from tests import shapes


@shapes.checked
def product(
    left: Float[Tensor, "batch inner"], right: Float[Tensor, "inner #column"], transposed: bool = False
) -> Float[Tensor, "batch column"]:
    result = left @ right
    return result.T if transposed else result


@shapes.checked
@dataclass
class Pair:
    ids: Int[Tensor, "batch position"]
    mask: Float[Tensor, "batch position"]


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape)


WRONG: list[Callable[[], object]] = [
    lambda: product(zeros(2, 3), zeros(3, 4), transposed=True),
    lambda: product(zeros(2, 3).long(), zeros(3, 4).long()),
    lambda: product(zeros(1, 2, 3), zeros(3, 4)),
    lambda: product(zeros(2, 3), zeros(3, 4), transposed=1),
    lambda: Pair(zeros(2, 3).long(), zeros(2, 4)),
    lambda: Pair(zeros(2, 3), zeros(2, 3)),
    lambda: Pair([[0, 1]], zeros(1, 2)),
]


@pytest.mark.parametrize("call", WRONG)
def test_what_does_not_agree_is_refused_each_time(call: Callable[[], object]) -> None:
    product(zeros(2, 3), zeros(3, 4))
    product(zeros(3, 3), zeros(3, 3), transposed=True)  # all sizes are equal: this is right
    Pair(zeros(2, 3).long(), zeros(2, 3))
    for _ in range(2):
        with pytest.raises(TypeCheckError):
            call()


def test_calls_of_one_kind_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compared, real = [], shapes._compared

    def counting(function: Callable[..., object]) -> Callable[..., object]:
        compare = real(function)
        return lambda *call: compared.append(call) or compare(*call)

    monkeypatch.setattr(shapes, "_compared", counting)

    def half(x: Float[Tensor, "batch dim"], name: str = "") -> Float[Tensor, "batch dim"]:
        return x / 2

    checked = shapes.checked(half)
    for rows in (2, 3, 7):
        checked(zeros(rows, 5))
    assert len(compared) == 1
    for other in (zeros(5, 5), zeros(1, 5), zeros(2, 5).double()):
        checked(other)
    checked(zeros(2, 5), "named")
    checked(zeros(2, 5), name="named")
    assert len(compared) == 6


def test_a_size_that_is_a_number_is_not_passed_over() -> None:
    def planar(x: Float[Tensor, "batch 2"]) -> None: ...

    with pytest.raises(AssertionError, match="batch 2"):
        shapes.checked(planar)


def test_of_a_function_that_is_called_again_and_again_some_calls_are_looked_at() -> None:
    def doubled(x: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch dim"]:
        return x * 2

    checked = shapes.checked(doubled)
    for _ in range(shapes.EVERY_ONE):
        checked(zeros(2, 5))
    refused = 0
    for _ in range(3 * shapes.ONE_OF):
        try:
            checked(zeros(2, 5).long())
        except TypeCheckError:
            refused += 1
    assert refused == 3


def test_the_package_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions, methods, and dataclasses of modules as they are imported, and they alone."""
    monkeypatch.setattr(shapes, "ONE_OF", 1)  # whatever ran before
    from sinkscope.attention.operation import Attended, Operation
    from sinkscope.attention.scores import dot_product

    for wrapped in (dot_product, Operation.forward, Attended.__init__):
        assert wrapped.__code__.co_filename == shapes.__file__
    assert Operation.__init__.__code__.co_filename != shapes.__file__
    with pytest.raises(TypeCheckError, match="query"):
        dot_product(zeros(2, 2, 3, 4).long(), zeros(2, 2, 3, 4), 1.0)


@pytest.mark.skipif("SINKSCOPE_NO_SHAPE_CHECKS" in os.environ, reason="SINKSCOPE_NO_SHAPE_CHECKS is set")
def test_shapes_with_names_of_their_own_are_checked_where_they_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "ONE_OF", 1)
    scores, count = zeros(2, 4), zeros(2, 1) + 4
    Softmax().weights(scores, scores == 0, count)
    with pytest.raises(TypeCheckError, match="visible"):
        Softmax().weights(scores, scores, count)
    with pytest.raises(TypeCheckError, match="visible"):
        Softmax().weights(scores, zeros(2, 3) == 0, count)
