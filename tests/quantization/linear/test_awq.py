"""AWQ against its search written as loops, and weights in formats of servers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from sinkscope.errors import InputError
from sinkscope.grids import Fp8, Fp8Rows, Grid, MxFp4, NvFp4, fake_quantize
from sinkscope.interventions import All
from sinkscope.quantization import AWQ, GPTQ, QuantizeLinear, linear_maps, scheme_named
from sinkscope.quantization.linear.awq import best_scale
from sinkscope.sinks import First
from sinkscope.trials import scheme_trial

IDS = torch.randint(0, 101, (4, 24), generator=torch.Generator().manual_seed(1))
GRID = Grid(3, group=4)


def naive_search(weights: list[Tensor], rows: Tensor, grid: Grid) -> tuple[float, Tensor, list[float]]:
    """llm-awq's `_search_module_scale`, with the outputs of the maps themselves: every exponent, every token."""
    size = rows.abs().mean(0)
    errors, scales = [], []
    for step in range(20):
        scale = (size ** (step / 20)).clamp(min=1e-4)
        scale = scale / (scale.max() * scale.min()).sqrt()
        error = 0.0
        for weight in weights:
            rounded = fake_quantize(weight * scale, grid) / scale
            for row in rows:
                error += float((weight @ row - rounded @ row).square().sum())
        errors.append(error)
        scales.append(scale)
    best = min(range(20), key=errors.__getitem__)
    return best / 20, scales[best], errors


def test_the_search_is_its_loops() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(40, 8, generator=generator) * torch.tensor([9.0, 1, 1, 0.2, 1, 3, 1, 1])
    weights = [torch.randn(6, 8, generator=generator), torch.randn(3, 8, generator=generator)]
    ratio, scale, errors = naive_search(weights, rows, GRID)
    assert 0 < ratio < 1
    found = best_scale(weights, rows.abs().mean(0), rows.double().T @ rows.double(), GRID)
    assert found[0] == ratio
    torch.testing.assert_close(found[1].float(), scale)
    assert min(errors) < 0.8 * errors[0]


def read(model: LlamaForCausalLM, path: str, ids: Tensor) -> Tensor:
    """What goes into a map, by a hook."""
    kept: list[Tensor] = []
    handle = model.get_submodule(path).register_forward_pre_hook(lambda module, args: kept.append(args[0]))
    with torch.no_grad():
        model(ids)
    handle.remove()
    return kept[0].flatten(0, 1)


def test_a_model_is_searched_input_by_input_and_stays_what_it_is(tiny_llama: LlamaForCausalLM) -> None:
    made = AWQ.of(tiny_llama, IDS, GRID, protect=First(1))
    attention = "model.layers.1.self_attn"
    paths = [f"{attention}.{name}_proj" for name in "qkv"]
    rows = read(tiny_llama, paths[0], IDS).unflatten(0, IDS.shape)[:, 1:].flatten(0, 1)
    weights = [tiny_llama.get_submodule(path).weight.detach() for path in paths]
    ratio, scale, _ = naive_search(weights, rows, GRID)  # type: ignore[arg-type]
    assert {made.ratios[path] for path in paths} == {ratio}
    torch.testing.assert_close(made.scales[paths[0]], scale, rtol=1e-4, atol=1e-6)
    before = [one.weight.clone() for one in linear_maps(tiny_llama).values()]
    with torch.no_grad():
        plain = tiny_llama(IDS).logits
        with made.applied(tiny_llama):
            torch.testing.assert_close(tiny_llama(IDS).logits, plain, atol=2e-5, rtol=1e-4)
        with QuantizeLinear(GRID, transform=made).applied(tiny_llama):
            assert float((tiny_llama(IDS).logits - plain).abs().max()) > 1e-4
    assert all(torch.equal(a, one.weight) for a, one in zip(before, linear_maps(tiny_llama).values(), strict=True))
    control = made.control(torch.Generator().manual_seed(3), tiny_llama, {"input_ids": IDS})
    with torch.no_grad(), control.applied(tiny_llama):
        torch.testing.assert_close(tiny_llama(IDS).logits, plain, atol=2e-5, rtol=1e-4)
    assert made.describe()["ratios"] == dict(made.ratios)


def test_the_scheme_is_scored_on_other_texts_and_refuses_what_it_cannot_do(tiny_llama: LlamaForCausalLM) -> None:
    found = scheme_trial(tiny_llama, torch.cat([IDS, IDS.flip(1)]), "w3-awq-g4-asym", {})
    assert found.texts == 4
    assert found.record["calibrated_on"]["texts"] == 4
    assert found.record["quantizer"]["transform"]["name"] == "AWQ"
    assert found.mean(found.baseline or "").value > 0
    with pytest.raises(InputError, match="do not divide"):
        AWQ.of(tiny_llama, IDS, Grid(4, group=128))
    with pytest.raises(InputError, match="leave out -smooth"):
        scheme_named("w4a8-token-smooth-awq")


@pytest.mark.parametrize(
    ("weights", "activations"), [(Fp8Rows(), Fp8Rows()), (Fp8(None), Fp8Rows()), (NvFp4(None), None), (MxFp4(), None)]
)
def test_weights_and_activations_in_formats(weights: Any, activations: Any) -> None:
    """Each weight by itself, each token by itself; protected tokens and what is skipped stay; all is undone."""
    from tests.quantization.kv.test_rotated import llama

    model = llama(2, 32)
    maps = linear_maps(model)
    before = {path: one.weight.clone() for path, one in maps.items()}
    how = QuantizeLinear(weights, activations, protect=First(1) if activations else None, skip=("lm_head", "layers.1"))
    with torch.no_grad(), how.applied(model):
        for path, one in maps.items():
            kept = ".layers.1." in path
            wanted = before[path] if kept else weights.fitted(before[path]).rounded(before[path])
            assert torch.equal(one.weight, wanted)
            assert kept or not torch.equal(one.weight, before[path])
        if activations is not None:
            x = torch.randn(1, 3, 128)
            [seen] = _inputs(model, x, model.model.layers[0].self_attn.o_proj, IDS[:1, :3] % 97)
            torch.testing.assert_close(seen[:, 1:], activations.rounded(x)[:, 1:])
            assert torch.equal(seen[:, :1], x[:, :1])
    assert all(torch.equal(one.weight, before[path]) for path, one in maps.items())
    assert how.describe()["weights"]["name"] == weights.name


def _inputs(model: LlamaForCausalLM, x: Tensor, module: nn.Module, ids: Tensor) -> list[Tensor]:
    """What a map computes with, if it is given x."""
    seen: list[Tensor] = []
    hooks = [
        module.register_forward_pre_hook(lambda module, args: (x,), prepend=True),
        module.register_forward_pre_hook(lambda module, args: seen.append(args[0])),
    ]
    model(ids)
    for hook in hooks:
        hook.remove()
    return seen


def test_bytes_count_scales_and_roundings_need_grids(tiny_llama: LlamaForCausalLM) -> None:
    from sinkscope.quantization.memory import weight_bytes
    from tests.quantization.kv.test_rotated import llama

    model = llama(2, 32)
    numbers = {path: one.weight.numel() for path, one in linear_maps(model).items()}
    held = weight_bytes(model, QuantizeLinear(MxFp4()))
    sixteen = weight_bytes(model, QuantizeLinear(Grid(16)))
    assert sixteen["weight_bytes"] - held["weight_bytes"] == sum(numbers.values()) * (16 - 4.25) / 8
    with pytest.raises(InputError, match="give weights=Grid"):
        QuantizeLinear(MxFp4(), rounding=GPTQ.of(tiny_llama, IDS))
    with pytest.raises(InputError, match="weights alone"):
        scheme_named("w4-mxfp4").make(model, {"input_ids": IDS}, First(1))
    assert isinstance(All((QuantizeLinear(MxFp4()),)).describe()["parts"], list)
