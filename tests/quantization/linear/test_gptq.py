"""GPTQ against the update that it is a faster form of, and its limits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sinkscope.errors import InputError
from sinkscope.quantization import GPTQ, Grid, QuantizeLinear, fake_quantize, linear_maps, steps_of
from sinkscope.quantization.linear.gptq import gptq
from sinkscope.sinks import First
from tests.quantization.linear.conftest import a_model, distance, inputs_of, logits

GRIDS = [Grid(3), Grid(4, symmetric=True), Grid(2, "tensor"), Grid(3, group=4), Grid(2, group=6, symmetric=True)]


def numbers(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def correlated(count: int, width: int) -> Tensor:
    return numbers(count, width) @ (torch.eye(width) + 0.8 * numbers(width, width, seed=8))


def naive(weight: Tensor, hessian: Tensor, grid: Grid, damp: float) -> Tensor:
    """Each column rounded in its turn, the others moved to the minimum of the loss that is left, by an inverse each."""
    left, found = weight.double().clone(), weight.double().clone()
    damped = hessian.double() + damp * hessian.diagonal().mean() * torch.eye(len(hessian))
    width = weight.shape[1]
    frozen = None
    for column in range(width):
        group = grid.group or width
        start = column // group * group
        if column == start:
            frozen = left[:, start : start + group].float().clone()
        part = frozen if grid.group else weight
        plain = Grid(grid.bits, grid.over, None, grid.symmetric)
        steps = steps_of(part, plain)
        found[:, column] = fake_quantize(left[:, column : column + 1].float(), plain, steps=steps)[:, 0]
        inverse = torch.linalg.inv(damped[column:, column:])
        error = left[:, column] - found[:, column]
        left[:, column + 1 :] -= error[:, None] / inverse[0, 0] * inverse[0, 1:]
    return found.float()


@pytest.mark.parametrize("grid", GRIDS)
def test_it_is_the_naive_update(grid: Grid) -> None:
    weight, x = numbers(5, 12), correlated(40, 12)
    hessian = 2 / 40 * x.T @ x
    torch.testing.assert_close(gptq(weight, hessian, grid, 0.01), naive(weight, hessian, grid, 0.01))


@pytest.mark.parametrize("grid", GRIDS)
def test_inputs_of_no_correlation_are_rounded_to_the_nearest(grid: Grid) -> None:
    weight = numbers(5, 12)
    assert torch.equal(gptq(weight, 3 * torch.eye(12), grid), fake_quantize(weight, grid))
    assert torch.equal(gptq(weight, torch.zeros(12, 12), grid), fake_quantize(weight, grid))


def test_a_weight_in_fp64_is_not_written_to() -> None:
    weight, x = numbers(5, 12).double(), correlated(40, 12)
    before = weight.clone()
    found = gptq(weight, x.T @ x, Grid(3))
    assert torch.equal(weight, before)
    assert torch.equal(found.float(), gptq(weight.float(), x.T @ x, Grid(3)))


@pytest.mark.parametrize("seed", range(2))
def test_it_errs_less_than_the_nearest_on_correlated_inputs(seed: int) -> None:
    weight, x = numbers(24, 200, seed=seed), numbers(900, 200, seed=seed + 10) @ numbers(200, 200, seed=seed + 20)
    hessian, grid = 2 / 900 * x.T @ x, Grid(3)

    def error(rounded: Tensor) -> float:
        return float(((weight - rounded) @ x.T).square().sum())

    assert error(gptq(weight, hessian, grid)) < 0.5 * error(fake_quantize(weight, grid))


def test_the_hessian_is_of_real_tokens_that_are_not_protected() -> None:
    model, inputs = a_model("llama"), inputs_of("llama")
    ids = inputs["input_ids"]
    mask = torch.ones_like(ids)
    mask[0, :7] = 0
    seen: list[Tensor] = []
    path = "model.layers.1.mlp.down_proj"
    handle = model.get_submodule(path).register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    logits(model, input_ids=ids, attention_mask=mask)
    handle.remove()
    kept = mask.bool()
    kept[:, 0] = False
    kept[0, 7] = False
    rows = seen[0][kept].double()
    found = GPTQ.of(model, {"input_ids": ids, "attention_mask": mask}, protect=First(1), batch_size=2)
    torch.testing.assert_close(found.hessians[path][0], 2 / len(rows) * rows.T @ rows, rtol=1e-4, atol=1e-7)


def test_each_expert_has_the_hessian_of_what_it_is_given() -> None:
    model, inputs = a_model("qwen3_moe"), inputs_of("qwen3_moe")
    experts, entered = model.model.layers[0].mlp.experts, {}
    handle = experts.register_forward_pre_hook(lambda module, args: entered.update(args=args))
    logits(model, **inputs)
    handle.remove()
    hidden, index, _ = entered["args"]
    found = GPTQ.of(model, inputs).hessians
    for expert in range(4):
        rows = hidden[(index == expert).any(-1)].double()
        expected = 2 / max(1, len(rows)) * rows.T @ rows
        torch.testing.assert_close(
            found["model.layers.0.mlp.experts.gate_up_proj"][expert], expected, rtol=1e-4, atol=1e-7
        )
        inner = torch.nn.functional.silu(rows.float() @ experts.gate_up_proj[expert].chunk(2)[0].T)
        inner = (inner * (rows.float() @ experts.gate_up_proj[expert].chunk(2)[1].T)).double()
        expected = 2 / max(1, len(rows)) * inner.T @ inner
        torch.testing.assert_close(
            found["model.layers.0.mlp.experts.down_proj"][expert], expected, rtol=1e-3, atol=1e-9
        )


@pytest.mark.parametrize("name", ["gpt2", pytest.param("qwen3_moe", marks=pytest.mark.slow)])
def test_a_model_errs_less_with_it(name: str) -> None:
    model, inputs = a_model(name), inputs_of(name)
    found, path = GPTQ.of(model, inputs), next(iter(linear_maps(model)))
    nearest = QuantizeLinear(Grid(3)).applied
    with nearest(model):
        plainly = linear_maps(model)[path].weight.clone()
    weight = linear_maps(model)[path].weight
    with QuantizeLinear(Grid(3), rounding=found).applied(model):
        better = linear_maps(model)[path].weight.clone()
        assert torch.isfinite(logits(model, **inputs)).all()
    hessian = found.hessians[path][0].float()

    def error(rounded: Tensor) -> Tensor:
        return ((weight - rounded) @ hessian * (weight - rounded)).sum()

    assert error(better) < error(plainly)
    assert distance(better, weight) < 1


def test_what_is_refused() -> None:
    model, inputs = a_model("llama"), inputs_of("llama")
    for damp in (0, float("inf")):
        with pytest.raises(InputError, match=f"damp = {damp}: expected a positive"):
            GPTQ.of(model, inputs, damp)
    x = numbers(3, 12)
    with pytest.raises(InputError, match="12 inputs has no inverse"):
        gptq(numbers(5, 12), x.T @ x, Grid(3), 1e-18)
    found = GPTQ.of(model, inputs, skip=("up_proj", "lm_head"))
    with pytest.raises(InputError, match="not calibrated for"), QuantizeLinear(Grid(3), rounding=found).applied(model):
        pass
    with pytest.raises(InputError, match="not over 'channel'"):
        gptq(numbers(5, 12), torch.eye(12), Grid(3, "channel"))
    with pytest.raises(InputError, match="groups of 5 do not divide 12"):
        gptq(numbers(5, 12), torch.eye(12), Grid(3, group=5))
