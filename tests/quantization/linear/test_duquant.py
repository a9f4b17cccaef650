"""DuQuant: its rotations aim at the column of the outlier, its permutation deals columns out, its function stays."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sinkscope.errors import InputError
from sinkscope.quantization import DuQuant, Grid, QuantizeLinear, linear_maps
from sinkscope.quantization.linear.duquant import aimed, block_of, givens, greedy_rotation, zigzag
from tests.quantization.linear.conftest import a_model, distance, inputs_of, logits, parameters


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("block", [2, 5, 16])
def test_its_matrices_are_orthogonal_and_spread_the_column_that_they_aim_at(block: int) -> None:
    eye = torch.eye(block, dtype=torch.float64)
    torch.testing.assert_close(givens(block) @ givens(block).T, eye, rtol=0, atol=1e-10)
    torch.testing.assert_close(givens(block)[0].abs(), torch.full((block,), block**-0.5, dtype=torch.float64))
    for column in range(block):
        matrix = aimed(block, column, generator())
        torch.testing.assert_close(matrix @ matrix.T, eye, rtol=0, atol=1e-10)
        assert float(matrix[column, column].abs()) == pytest.approx(block**-0.5)


def with_an_outlier(row: int, column: int, width: int = 16) -> Tensor:
    rows = torch.randn(40, width, dtype=torch.float64, generator=generator(1))
    rows[row, column] = 300
    return rows


@pytest.mark.parametrize(("row", "column"), [(0, 5), (3, 11), (7, 0)])
def test_one_step_brings_an_outlier_down(row: int, column: int) -> None:
    rows = with_an_outlier(row, column)
    step = aimed(16, column, generator(2))
    elsewhere = aimed(16, (column + 1) % 16, generator(2))
    before, after = rows.abs().max(), (rows @ step).abs().max()
    assert after < 0.75 * before
    found = greedy_rotation(rows, 16, 1, generator(2))
    torch.testing.assert_close(found, step)  # it aimed at the column, not at the row
    assert not torch.allclose(found, elsewhere)


def test_more_steps_never_leave_a_larger_peak() -> None:
    rows = with_an_outlier(3, 11)
    peaks = []
    for steps in (0, 1, 4, 16, 64):
        turned = rows @ greedy_rotation(rows, 16, steps, generator(3))
        peaks.append(float(turned.max() - turned.min()))
        torch.testing.assert_close(turned.norm(), rows.norm())
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[-1] < 0.8 * peaks[0]
    assert torch.equal(greedy_rotation(rows, 16, 0, generator()), torch.eye(16, dtype=torch.float64))


def test_columns_are_dealt_back_and_forth() -> None:
    rows = torch.diag(torch.tensor([3.0, 8, 1, 6, 5, 2, 7, 4]))
    assert rows.abs().amax(0)[zigzag(rows, 4)].tolist() == [8, 5, 4, 1, 7, 6, 3, 2]
    assert rows.abs().amax(0)[zigzag(rows, 2)].tolist() == [8, 1, 7, 2, 6, 3, 5, 4]


@pytest.mark.parametrize(("width", "block"), [(336, 112), (128, 128), (48, 48), (7, 7), (257, 1)])
def test_blocks_divide_the_width(width: int, block: int) -> None:
    assert block_of(width, 128) == block


SLOW = [pytest.param(name, 0.5, marks=pytest.mark.slow) for name in ("gpt2", "deepseek_v3", "qwen3_moe")]


@pytest.mark.parametrize(("name", "alpha"), [("llama", None), ("llama", 0.5), *SLOW])
def test_the_function_stays(name: str, alpha: float | None) -> None:
    model, inputs = a_model(name, torch.float64), inputs_of(name)
    plain, before = logits(model, **inputs), parameters(model)
    made = DuQuant.of(model, inputs, block=16, steps=3, alpha=alpha)
    with made.applied(model):
        assert distance(logits(model, **inputs), plain) < 1e-6
        assert sum(value is not before[key] for key, value in parameters(model).items()) == len(linear_maps(model))
    with made.control(generator(), model, inputs).applied(model):
        assert distance(logits(model, **inputs), plain) < 1e-6
    assert all(value is before[key] for key, value in parameters(model).items())


def test_maps_that_read_one_tensor_share_their_change() -> None:
    model = a_model("llama")
    made = DuQuant.of(model, inputs_of("llama"), block=16, steps=2).made
    stem = "model.layers.0.self_attn"
    assert made[f"{stem}.q_proj"] is made[f"{stem}.v_proj"] is not made[f"{stem}.o_proj"]


def test_a_token_wise_outlier_costs_less() -> None:
    model = a_model("llama")
    with torch.no_grad():
        model.model.layers[1].input_layernorm.weight[9] *= 60
    ids = torch.randint(5, 97, (6, 24), generator=generator(4))
    plain = logits(model, input_ids=ids)

    def cost(quantizer: QuantizeLinear) -> float:
        with quantizer.applied(model):
            return distance(logits(model, input_ids=ids), plain)

    grids = Grid(16), Grid(4, symmetric=True)
    made = DuQuant.of(model, ids, block=16, steps=16)
    assert cost(QuantizeLinear(*grids, transform=made)) < 0.8 * cost(QuantizeLinear(*grids))


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="block = 1"):
        DuQuant.of(a_model("llama"), inputs_of("llama"), block=1)
    with pytest.raises(InputError, match="steps = -1"):
        DuQuant.of(a_model("llama"), inputs_of("llama"), steps=-1)
