"""Rotations: orthogonal matrices against their definitions, and functions that stay."""

from __future__ import annotations

from contextlib import nullcontext, suppress

import pytest
import torch

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.grids import hadamard, random_orthogonal, rotation
from sinkscope.hooks.stream import read_stream
from sinkscope.interventions import All
from sinkscope.quantization import (
    Grid,
    QuantizeLinear,
    RotateInputs,
    RotateResidual,
    SmoothQuant,
    Transforms,
    linear_maps,
)
from tests.families.registry import FAMILIES
from tests.quantization.linear.conftest import a_model, distance, hooks, inputs_of, logits, parameters


@pytest.mark.parametrize("size", [1, 2, 8, 64])
def test_hadamard_matrices_are_kronecker_powers(size: int) -> None:
    expected, two = torch.ones(1, 1, dtype=torch.float64), torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    while len(expected) < size:
        expected = torch.kron(two, expected)
    torch.testing.assert_close(hadamard(size) * size**0.5, expected)
    torch.testing.assert_close(hadamard(size) @ hadamard(size).T, torch.eye(size, dtype=torch.float64))


def test_random_orthogonal_matrices_are_the_q_of_a_gaussian() -> None:
    found = random_orthogonal(21, torch.Generator().manual_seed(5))
    drawn = torch.randn(21, 21, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(found.T @ found, torch.eye(21, dtype=torch.float64))
    upper = found.T @ drawn
    assert (upper.diagonal() > 0).all()
    torch.testing.assert_close(upper, upper.triu())


@pytest.mark.parametrize(("width", "block"), [(336, 16), (128, 128), (48, 16), (36, 36), (7, 7)])
def test_the_blocks_that_a_width_allows(width: int, block: int) -> None:
    (found,) = rotation(width, "hadamard", 0)
    assert found.matrix.shape == (block, block)
    is_hadamard = torch.allclose(found.matrix.abs(), torch.full_like(found.matrix, block**-0.5))
    assert is_hadamard == (width % 8 == 0)
    spread = found(torch.eye(width)[3] * 100).abs().max()
    assert spread == pytest.approx(100 * block**-0.5) if is_hadamard else spread < 100


SLOW = [
    pytest.param(name, "orthogonal", marks=pytest.mark.slow) for name in ("phi3", "deepseek_v3", "bart", "nemotron_h")
]
FAST = [("llama", "hadamard"), ("gpt2", "orthogonal"), ("qwen3_moe", "hadamard"), ("gpt_oss", "orthogonal")]


@pytest.mark.parametrize(("name", "kind"), [*FAST, *SLOW])
def test_rotated_inputs_leave_the_function(name: str, kind: str) -> None:
    model, inputs = a_model(name, torch.float64), inputs_of(name)
    plain, before = logits(model, **inputs), parameters(model)
    with RotateInputs(kind=kind).applied(model):
        assert distance(logits(model, **inputs), plain) < 1e-6
        assert sum(value is not before[key] for key, value in parameters(model).items()) == len(linear_maps(model))
    assert all(value is before[key] for key, value in parameters(model).items())


def test_only_the_kinds_that_are_named() -> None:
    model, inputs = a_model("llama"), inputs_of("llama")
    before = parameters(model)
    with RotateInputs(["down"]).applied(model):
        logits(model, **inputs)
        changed = {path for (path, _), value in parameters(model).items() if value is not before[path, _]}
    assert changed == {f"model.layers.{layer}.mlp.down_proj" for layer in (0, 1)}
    with pytest.raises(InputError, match="this model has down, gate"), RotateInputs(["dwn"]).applied(model):
        pass
    with pytest.raises(InputError, match="expected one of hadamard, orthogonal"):
        RotateInputs(kind="hadamart")  # type: ignore[arg-type]


ROTATED = ["llama", "gemma", "phi3", "granite", "qwen3_moe", "gpt_oss", "deepseek_v3", "lfm2"]
QUICK = ("llama", "gemma", "gpt_oss")


@pytest.mark.parametrize(
    "name", [one if one in QUICK else pytest.param(one, marks=pytest.mark.slow) for one in ROTATED]
)
def test_a_rotated_stream_leaves_the_function(name: str) -> None:
    model, inputs = a_model(name, torch.float64), inputs_of(name)
    plain, before = logits(model, **inputs), parameters(model)
    rotated = RotateResidual.of(model, inputs, "orthogonal")
    assert len(rotated.writers) >= 2 * model.config.num_hidden_layers - 2
    with rotated.applied(model):
        assert distance(logits(model, **inputs), plain) < 1e-6
    control = rotated.control(torch.Generator().manual_seed(3), model, inputs)
    with control.applied(model):
        assert distance(logits(model, **inputs), plain) < 1e-6
    assert all(value is before[key] for key, value in parameters(model).items())


def test_the_stream_is_rotated_inside() -> None:
    model, inputs = a_model("llama", torch.float64), inputs_of("llama")
    rotated, streams = RotateResidual.of(model, inputs, seed=4), []
    for changed in (False, True):
        found: dict[int, torch.Tensor] = {}
        if changed:
            with rotated.applied(model), read_stream(model, lambda d, h, _, found=found: found.update({d: h.clone()})):
                logits(model, **inputs)
        else:
            with read_stream(model, lambda d, h, _, found=found: found.update({d: h.clone()})):
                logits(model, **inputs)
        streams.append(found)
    (turn,) = rotation(32, "hadamard", 4)
    for depth in (0, 1):
        torch.testing.assert_close(streams[1][depth], turn(streams[0][depth]))
    torch.testing.assert_close(streams[1][2], streams[0][2])


def test_transforms_one_after_the_other_leave_the_function() -> None:
    model, inputs = a_model("llama", torch.float64), inputs_of("llama")
    plain, before, held = logits(model, **inputs), parameters(model), hooks(model)
    residual, smooth = RotateResidual.of(model, inputs), SmoothQuant.of(model, inputs)
    one, other = RotateInputs(seed=1), RotateInputs(kind="orthogonal", seed=2)
    chains = [(residual, RotateInputs(["down"])), (smooth, one), (one, other), (smooth, residual, other)]
    for chain in (*map(Transforms, chains), All((one, other)), All((one, smooth))):
        with chain.applied(model):
            assert distance(logits(model, **inputs), plain) < 1e-6
    control = Transforms(chains[0]).control(torch.Generator(), model, inputs)
    with control.applied(model), one.applied(model):
        assert distance(logits(model, **inputs), plain) < 1e-6
    for chain in (Transforms((one, smooth)), Transforms((one, residual)), All((smooth, one))):
        with pytest.raises(InputError, match=r"give both to Transforms"), chain.applied(model):
            pass
    assert all(value is before[key] for key, value in parameters(model).items())
    assert hooks(model) == held


def test_the_first_of_several_transforms_comes_first() -> None:
    model, inputs = a_model("llama"), inputs_of("llama")
    path, seen = "model.layers.0.mlp.down_proj", []
    one, other = RotateInputs(["down"], seed=1), RotateInputs(["down"], kind="orthogonal", seed=2)
    for chain in (None, Transforms((one, other))):
        with chain.applied(model) if chain else nullcontext():
            handle = model.get_submodule(path).register_forward_pre_hook(lambda module, args: seen.append(args[0]))
            logits(model, **inputs)
            handle.remove()
    (first,), (second,) = rotation(48, "hadamard", 1), rotation(48, "orthogonal", 2)
    torch.testing.assert_close(seen[1], second(first(seen[0])), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["gpt2", "olmo2", "cohere"])
def test_a_stream_that_a_rotation_would_change_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match="use RotateInputs"):
        RotateResidual.of(a_model(name), inputs_of(name))


def test_a_rotation_spreads_an_outlying_channel() -> None:
    model = a_model("llama")
    with torch.no_grad():
        model.model.layers[1].input_layernorm.weight[9] *= 60
    ids = torch.randint(5, 97, (6, 24), generator=torch.Generator().manual_seed(4))
    plain = logits(model, input_ids=ids)

    def cost(quantizer: QuantizeLinear) -> float:
        with quantizer.applied(model):
            return distance(logits(model, input_ids=ids), plain)

    grids = Grid(16), Grid(6, "tensor", symmetric=True)
    nothing = cost(QuantizeLinear(*grids))
    assert cost(QuantizeLinear(*grids, transform=RotateInputs())) < 0.75 * nothing


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ROTATED][::3])
def test_rotations_of_families_leave_the_function_or_are_refused(name: str) -> None:
    if not FAMILIES[name].exists:
        pytest.skip("the installed transformers lacks this family")
    model, inputs = a_model(name), inputs_of(name)
    plain = logits(model, **inputs)
    for make in (RotateInputs, lambda: RotateResidual.of(model, inputs)):
        with suppress(UnsupportedModelError), make().applied(model):
            found = logits(model, **inputs)  # a pass that is refused gives none
            assert distance(found, plain) < 1e-3
