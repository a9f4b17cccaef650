"""SliM-LLM: bits that keep their average, chosen by divergence, and scales that err least."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sinkscope.errors import InputError
from sinkscope.grids import Steps, decode, encode, steps_of
from sinkscope.quantization import GPTQ, Grid, QuantizeLinear, SliM, linear_maps
from sinkscope.quantization.linear.gptq import gptq, inverse_factor
from sinkscope.quantization.linear.slim import (
    SHRINKS,
    binary_steps,
    chosen_bits,
    fitted_steps,
    mixtures,
    salience,
    salient_entries,
)
from tests.quantization.linear.conftest import a_model, inputs_of, logits


def numbers(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("groups", [2, 3, 7, 8])
def test_every_mixture_keeps_the_average(groups: int) -> None:
    sizes = numbers(groups).abs()
    tried = mixtures(sizes, 3)
    assert tried[0] == (3,) * groups
    assert len(tried) == groups // 2 + 1
    for count, bits in enumerate(tried):
        assert sum(bits) == 3 * groups
        low = {at for at, own in enumerate(bits) if own == 2}
        high = {at for at, own in enumerate(bits) if own == 4}
        assert low == set(sizes.argsort()[:count].tolist())
        assert high == set(sizes.argsort(descending=True)[:count].tolist())


def test_a_planted_weight_tops_the_salience() -> None:
    weight, x = numbers(6, 24), numbers(90, 24, seed=5)
    weight[2, 13] = 30
    upper = inverse_factor(x.T @ x, 0.01)
    sizes = salience(weight, upper, 4)
    assert int(sizes.argmax()) == 3
    expected = sum(float(weight[row, 13].double() ** 2 / upper[13, 13] ** 2) for row in range(6))
    assert float(sizes[3]) > expected
    inverse = upper.T @ upper
    torch.testing.assert_close(inverse @ (x.T @ x).double(), torch.eye(24, dtype=torch.float64), rtol=0, atol=0.2)
    found = salient_entries((weight.double() ** 2 / upper.diagonal() ** 2)[:, 12:16])
    assert found[2, 1]
    assert found.sum() == 1


def test_the_mixture_of_least_divergence_is_taken() -> None:
    weight, rows = numbers(6, 24, seed=2), 2 * numbers(50, 24, seed=102)  # the other direction would take another
    weight[:, :4] *= 3
    grid = Grid(2, group=4)
    sizes = salience(weight, inverse_factor(rows.T @ rows, 0.01), 4)
    found = chosen_bits(weight, sizes, rows, grid)

    def divergence(bits: tuple[int, ...]) -> float:
        parts = []
        for own, part in zip(bits, weight.split(4, 1), strict=True):
            low = part.mean(1, keepdim=True) if own == 1 else part.amin(1, keepdim=True)
            if own == 1:
                far = (part - low).abs().mean(1, keepdim=True)
                parts.append(torch.where(part > low, low + far, low - far))
            else:
                step = (part.amax(1, keepdim=True) - low) / (2**own - 1)
                parts.append(((part - low) / step).round() * step + low)
        q, p = (rows @ torch.cat(parts, 1).T).log_softmax(-1), (rows @ weight.T).log_softmax(-1)
        return float((q.exp() * (q - p)).sum(-1).mean())

    tried = mixtures(sizes, 2)
    costs = [divergence(bits) for bits in tried]
    assert found == tried[costs.index(min(costs))]
    assert found != tried[0]


def test_one_bit_is_the_mean_and_the_mean_distance() -> None:
    weight = numbers(3, 40)
    steps = binary_steps(weight)
    found = decode(encode(weight, steps, Grid(1)), steps, Grid(1))
    mean = weight.mean(1, keepdim=True)
    far = (weight - mean).abs().mean(1, keepdim=True)
    torch.testing.assert_close(found, torch.where(weight > mean, mean + far, mean - far))


@pytest.mark.parametrize("times", [1.0, 20.0])
@pytest.mark.parametrize("grid", [Grid(2), Grid(3, symmetric=True)])
def test_the_scale_errs_least_of_all_that_are_tried(grid: Grid, times: float) -> None:
    weight = numbers(4, 30)
    weight[:, 4] *= 5
    salient = weight.abs() > 4
    found = fitted_steps(weight, grid, salient, times)
    whole = steps_of(weight, grid)
    for row in range(4):
        costs = []
        for shrink in SHRINKS:
            low = None if whole.low is None else whole.low[row] * shrink
            steps = Steps(whole.step[row] * shrink, low)
            error = (decode(encode(weight[row], steps, grid), steps, grid) - weight[row]).abs() ** 2.4
            costs.append(float((error * torch.where(salient[row], times, 1.0)).sum()))
        best = SHRINKS[costs.index(min(costs))]
        assert float(found.step[row]) == pytest.approx(float(whole.step[row]) * best)
    assert len(SHRINKS) == 101
    assert (min(SHRINKS), max(SHRINKS)) == pytest.approx((0.9, 1.1))


def test_equal_bits_without_fitting_are_gptq(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = numbers(6, 24), numbers(90, 24, seed=5)
    hessian, grid = x.T @ x, Grid(3, group=8)
    found = SliM({"map": [hessian]}, {"map": [x[:0]]})
    assert found.bits("map", weight, grid) == ((3, 3, 3),)
    monkeypatch.setattr("sinkscope.quantization.linear.slim.fitted_steps", lambda part, own, *_: steps_of(part, own))
    torch.testing.assert_close(found.rounded("map", weight, grid), gptq(weight, hessian, grid))


@pytest.mark.parametrize("name", ["llama", pytest.param("qwen3_moe", marks=pytest.mark.slow)])
def test_a_model_with_it(name: str) -> None:
    model, inputs = a_model(name), inputs_of(name)
    skip = ("lm_head", "layers.1", "self_attn")
    found, grid = SliM.of(model, inputs, skip=skip), Grid(3, group=8)
    gptqs = GPTQ.of(model, inputs, skip=skip)
    for path, one in linear_maps(model, skip).items():
        torch.testing.assert_close(found.hessians[path], gptqs.hessians[path])
        for bits in found.bits(path, one.weight.detach(), grid):
            assert sum(bits) == 3 * one.weight.shape[-1] // 8
    with QuantizeLinear(grid, skip=skip, rounding=found).applied(model):
        assert torch.isfinite(logits(model, **inputs)).all()
    assert found.describe() == {"name": "SliM", "damp": 0.01, "salient": 1.0}


def test_grids_without_groups_of_inputs_are_refused() -> None:
    found = SliM({"map": [torch.eye(24)]}, {"map": [numbers(5, 24)]})
    for grid in (Grid(3), Grid(3, "tensor")):
        with pytest.raises(InputError, match="with group="):
            found.rounded("map", numbers(6, 24), grid)
    with pytest.raises(InputError, match="not calibrated"):
        found.rounded("other", numbers(6, 24), Grid(3, group=8))
    with pytest.raises(InputError, match="1 bit"):
        found.rounded("map", numbers(6, 24), Grid(2, group=2, symmetric=True))
