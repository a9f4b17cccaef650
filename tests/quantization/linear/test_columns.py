"""LLM.int8: an exact integer product beside a full-precision one, its ends, and how much is kept."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.quantization import Grid, OutlyingColumns, QuantizeLinear
from sinkscope.quantization.linear.columns import _Split
from sinkscope.sinks import First
from tests.quantization.linear.conftest import a_model, distance, inputs_of, logits

INT8 = Grid(8, symmetric=True)


def numbers(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def codes(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.where(scale > 0, x / scale, 0).round().to(torch.int32), scale


def through(model: nn.Module, path: str, x: Tensor, intervention: OutlyingColumns) -> Tensor:
    """What one map gives for x, while a pass is under way."""
    module, found = model.get_submodule(path), []

    def instead(other: nn.Module, args: tuple, output: Tensor) -> None:
        found.append(module(x))

    with intervention.applied(model):
        handle = model.model.embed_tokens.register_forward_hook(instead)
        logits(model, input_ids=torch.arange(8).view(2, 4))
        handle.remove()
    return found[0].detach()


def test_it_is_an_integer_product_and_an_exact_one() -> None:
    model, path = a_model("llama"), "model.layers.0.mlp.down_proj"
    x = numbers(2, 4, 48)
    x[0, 2, 7] = 9
    x[1, 1, 30] = -6  # just reaches the threshold
    weight = model.get_submodule(path).weight.detach()
    whole_codes, w_scale = codes(weight)
    found = through(model, path, x, OutlyingColumns(6.0))
    for text, column in enumerate((7, 30)):  # each text has its own column
        kept = torch.zeros(48, dtype=torch.bool)
        kept[column] = True
        x_codes, x_scale = codes(x[text, :, ~kept])
        product = torch.einsum("ti,oi->to", x_codes, whole_codes[:, ~kept])
        assert product.dtype == torch.int32
        expected = product * x_scale * w_scale[:, 0] + x[text, :, kept] @ weight[:, kept].T
        torch.testing.assert_close(found[text], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_its_ends(name: str) -> None:
    model, inputs = a_model(name), inputs_of(name)
    plain = logits(model, **inputs)
    with OutlyingColumns(0.0).applied(model):
        assert distance(logits(model, **inputs), plain) < 1e-5
    with QuantizeLinear(INT8, INT8).applied(model):
        rounded = logits(model, **inputs)
    with OutlyingColumns(float("inf")).applied(model):
        assert distance(logits(model, **inputs), rounded) < 1e-6
    assert distance(rounded, plain) > 1e-4
    assert set(OutlyingColumns(0.0).kept(model, inputs).values()) == {1.0}
    assert set(OutlyingColumns(float("inf")).kept(model, inputs).values()) == {0.0}


def test_an_outlying_channel_costs_almost_nothing_and_what_is_kept_is_said() -> None:
    model, path = a_model("llama"), "model.layers.0.mlp.down_proj"
    x = numbers(2, 4, 48)
    x[..., 11] *= 3000
    exact = (x @ model.get_submodule(path).weight.T).detach()
    kept = through(model, path, x, OutlyingColumns(6.0))
    none = through(model, path, x, OutlyingColumns(float("inf")))
    assert float((kept - exact).norm()) < 1e-2 * float((none - exact).norm())


def test_the_share_is_of_real_tokens_that_are_not_protected() -> None:
    model, ids = a_model("llama"), torch.randint(5, 97, (2, 12), generator=torch.Generator().manual_seed(4))
    ids[:, 0] = 2
    with torch.no_grad():
        model.model.embed_tokens.weight[2] = 40 * torch.eye(32)[31]
        model.model.embed_tokens.weight[3] = 40 * torch.eye(32)[30]
        model.model.layers[0].input_layernorm.weight *= 1.5
    padded = torch.cat([torch.full((2, 1), 3), ids], 1)
    mask = torch.cat([torch.zeros(2, 1, dtype=torch.long), torch.ones_like(ids)], 1)
    given, path = {"input_ids": padded, "attention_mask": mask}, "model.layers.0.self_attn.q_proj"
    assert OutlyingColumns(6.0).kept(model, given)[path] == pytest.approx(1 / 32)
    assert OutlyingColumns(6.0, protect=First(1)).kept(model, given)[path] == 0
    plain = logits(model, **given)
    for threshold in (6.0, float("inf")):
        with OutlyingColumns(threshold, protect=First(12)).applied(model):
            torch.testing.assert_close(logits(model, **given)[:, 1:], plain[:, 1:], rtol=1e-4, atol=1e-5)


def test_what_is_refused() -> None:
    model = a_model("qwen3_moe")
    with pytest.raises(UnsupportedModelError, match=r"experts\.gate_up_proj.*skip"), OutlyingColumns().applied(model):
        pass
    with OutlyingColumns(skip=("experts", "lm_head")).applied(model):
        assert torch.isfinite(logits(model, **inputs_of("qwen3_moe"))).all()
    with pytest.raises(InputError, match="threshold = -1"):
        OutlyingColumns(-1)
    with pytest.raises(InputError, match="nothing is protected"):
        OutlyingColumns().control(torch.Generator(), model, {})


def test_what_protected_tokens_reach_keeps_no_column_for_others() -> None:
    model, path, first = a_model("llama"), "model.layers.0.mlp.down_proj", First(1)
    x = numbers(2, 4, model.get_submodule(path).in_features).clamp(-2, 2)
    x[:, 0] *= 100
    alone, none = (through(model, path, x, OutlyingColumns(threshold, first)) for threshold in (5.0, math.inf))
    assert torch.equal(alone, none)
    assert not torch.equal(through(model, path, x, OutlyingColumns(5.0)), none)


def test_a_map_that_raises_keeps_nothing_of_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    model = a_model("llama")
    module = model.get_submodule("model.layers.0.mlp.down_proj")

    def broken(x: Tensor) -> Tensor:
        raise RuntimeError("broken")

    monkeypatch.setattr(module, "forward", broken)
    with OutlyingColumns().applied(model):
        with pytest.raises(RuntimeError, match="broken"):
            logits(model, **inputs_of("llama"))
        owners = [getattr(hook, "__self__", None) for hook in module._forward_hooks.values()]
        [split] = [owner for owner in owners if isinstance(owner, _Split)]
        assert split.aside is None
