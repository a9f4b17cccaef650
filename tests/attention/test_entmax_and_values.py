"""Identities of entmax, cosines, head norms, and values whose gradient alone is scaled."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import sinkscope.attention as zoo
from sinkscope.attention.normalizers import Entmax
from sinkscope.errors import InputError

from .problems import DIM, assert_close, build, problem


def entmax(scores: Tensor, alpha: float, visible: Tensor | None = None) -> Tensor:
    seen = torch.ones_like(scores, dtype=torch.bool) if visible is None else visible
    return Entmax(alpha=alpha).weights(scores, seen, seen.sum(-1, keepdim=True).to(scores.dtype))


def sparsemax(scores: Tensor) -> Tensor:
    """Martins and Astudillo 2016, by sorting."""
    ordered = scores.sort(-1, descending=True).values
    ranks = torch.arange(1, scores.shape[-1] + 1, dtype=scores.dtype)
    sums = ordered.cumsum(-1)
    count = (1 + ranks * ordered > sums).sum(-1, keepdim=True)
    return (scores - (sums.gather(-1, count - 1) - 1) / count).relu()


def test_entmax_is_softmax_at_one_and_sparsemax_at_two() -> None:
    scores = torch.randn(5, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 2
    torch.testing.assert_close(entmax(scores, 1), scores.softmax(-1))
    torch.testing.assert_close(entmax(scores, 1.0005), scores.softmax(-1), atol=1e-3, rtol=0)
    torch.testing.assert_close(entmax(scores, 2), sparsemax(scores))


def bisected(scores: Tensor, alpha: float) -> Tensor:
    """The definition, with τ found by halving an interval in float64."""
    scores = (alpha - 1) * scores.double()
    high = scores.amax(-1, keepdim=True)
    low = high - 1
    for _ in range(100):
        middle = (low + high) / 2
        below = (scores - middle).relu().pow(1 / (alpha - 1)).sum(-1, keepdim=True) > 1
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (scores - low).relu().pow(1 / (alpha - 1))


@pytest.mark.parametrize("alpha", [1.00001, 1.001, 1.3, 1.5, 1.9, 2.0])
def test_entmax_is_as_exact_near_one_as_elsewhere(alpha: float) -> None:
    scores = 3 * torch.randn(8, 300, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(entmax(scores, alpha).double(), bisected(scores, alpha), atol=5e-7, rtol=0)


@pytest.mark.parametrize("alpha", [1.1, 1.5, 2.0])
@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 300.0])
def test_rows_of_entmax_sum_to_one(alpha: float, scale: float) -> None:
    scores = scale * torch.randn(3, 4096, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(entmax(scores, alpha).sum(-1), torch.ones(3), atol=2e-5, rtol=0)
    assert entmax(scores, alpha, torch.zeros(3, 4096, dtype=torch.bool)).count_nonzero() == 0


@pytest.mark.parametrize("alpha", [1.0, 1.001, 1.3, 1.5, 2.0])
def test_gradients_of_entmax(alpha: float) -> None:
    scores = torch.randn(2, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(2), requires_grad=True)
    visible = torch.ones(2, 7, dtype=torch.bool).tril(4)
    assert torch.autograd.gradcheck(lambda s: entmax(s, alpha, visible), scores, eps=1e-7, atol=1e-5)


def test_a_cosine_does_not_see_lengths_and_is_bounded() -> None:
    case = problem(zoo.CATALOG["cosine"], tokens=6)
    longer = zoo.attend(7 * case.query, 0.1 * case.key, case.value, case.spec, case.parameters)
    assert_close(longer.output, case.attend().output)
    scale = case.parameters["query_key.scale"]
    query, key = (x.detach() for x in build(case.spec).before_rotation(case.query, case.key))
    assert float((query @ key.repeat_interleave(2, 1).mT).abs().max()) * DIM**-0.5 <= 10 * (1 + 1e-6)
    assert scale.shape == (4,)


def test_head_outputs_have_unit_rms() -> None:
    case = problem(zoo.CATALOG["softmax"], tokens=9)
    output = build(zoo.CATALOG["head_norm"])(case.query, case.key, case.value).output
    torch.testing.assert_close(output.square().mean(-1), torch.ones(2, 4, 9), atol=1e-3, rtol=0)


@pytest.mark.parametrize("phi", ["constant", "inverse_rms"])
def test_only_the_gradient_of_values_is_scaled(phi: str) -> None:
    case = problem(zoo.CATALOG["softmax"], tokens=9)
    spec = zoo.ENTRIES["value_gradient"].make(phi=phi, strength=0.25)
    found = []
    for one in (case.spec, spec):
        inputs = [x.detach().clone().requires_grad_() for x in (case.query, case.key, case.value)]
        output = zoo.attend(*inputs, one).output
        found.append((output, torch.autograd.grad(output.square().sum(), inputs)))
    (plain, (query, key, value)), (scaled, (to_query, to_key, to_value)) = found
    assert torch.equal(plain, scaled)
    assert torch.equal(query, to_query)
    assert torch.equal(key, to_key)
    rms = case.value.square().mean(-1, keepdim=True).sqrt() if phi == "inverse_rms" else 1
    torch.testing.assert_close(to_value, 0.25 * value / rms, rtol=1e-4, atol=1e-6)


def test_unknown_places_and_functions_are_refused() -> None:
    with pytest.raises(InputError, match="unknown place of a gate 'input'"):
        zoo.resolve({"name": "gated_by_value", "at": "input"})
    with pytest.raises(InputError, match="phi"):
        zoo.resolve({"name": "value_gradient", "phi": "tanh"})
    with pytest.raises(InputError, match="alpha"):
        zoo.resolve({"name": "entmax", "alpha": 2.5})
