"""SmoothQuant: its formula, its function unchanged, and what it is for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.quantization import Grid, QuantizeLinear, SmoothQuant, linear_maps
from sinkscope.quantization.linear.norms import gain_of
from sinkscope.sinks import First
from tests.quantization.linear.conftest import a_model, distance, inputs_of, logits, parameters

W8, T8 = Grid(8, symmetric=True), Grid(8, "tensor", symmetric=True)


SLOW = ("gemma", "gpt_neox", "deepseek_v3", "olmo2")
CASES = [("llama", 0.0), ("llama", 1.0), ("gpt2", 0.5), ("qwen3_moe", 0.5), ("gpt_oss", 0.8)]


@pytest.mark.parametrize(
    ("name", "alpha"), [*CASES, *(pytest.param(name, 0.5, marks=pytest.mark.slow) for name in SLOW)]
)
def test_the_function_stays(name: str, alpha: float) -> None:
    model, inputs = a_model(name, torch.float64), inputs_of(name)
    plain, before = logits(model, **inputs), parameters(model)
    smooth = SmoothQuant.of(model, inputs, alpha)
    with smooth.applied(model):
        assert distance(logits(model, **inputs), plain) < 1e-6
        changed = [key for key, value in parameters(model).items() if value is not before[key]]
    assert len(changed) >= len(linear_maps(model))
    assert all(value is before[key] for key, value in parameters(model).items())


def inputs_seen(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    seen: dict[str, Tensor] = {}
    handles = [
        one.module.register_forward_pre_hook(lambda m, args, path=path: seen.update({path: args[0].flatten(0, -2)}))
        for path, one in linear_maps(model).items()
    ]
    logits(model, **inputs)
    for handle in handles:
        handle.remove()
    return seen


def test_its_formula() -> None:
    model, inputs = a_model("llama"), inputs_of("llama")
    smooth, seen = SmoothQuant.of(model, inputs, 0.3, batch_size=2), inputs_seen(model, inputs)
    for layer in (0, 1):
        stem = f"model.layers.{layer}"
        for group in (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ("mlp.gate_proj", "mlp.up_proj")):
            paths = [f"{stem}.{name}" for name in group]
            weights = torch.cat([model.get_submodule(path).weight for path in paths]).abs().amax(0)
            scale = seen[paths[0]].abs().amax(0) ** 0.3 / weights**0.7
            for path in paths:
                torch.testing.assert_close(smooth.scales[path], scale)
        for path in (f"{stem}.self_attn.o_proj", f"{stem}.mlp.down_proj"):
            weight = model.get_submodule(path).weight.abs().amax(0)
            torch.testing.assert_close(smooth.scales[path], seen[path].abs().amax(0) ** 0.3 / weight**0.7)


def test_what_the_gains_take_and_what_is_divided() -> None:
    model, inputs = a_model("llama"), inputs_of("llama")
    smooth = SmoothQuant.of(model, inputs)
    norms = {path for path, _ in model.named_modules() if path.endswith("layernorm")}
    assert set(smooth.gains) == norms
    assert {path.rpartition(".")[2] for path in smooth.divided} == {"o_proj", "down_proj"}
    gain = model.model.layers[0].input_layernorm.weight.clone()
    with smooth.applied(model):
        scale = smooth.scales["model.layers.0.self_attn.q_proj"]
        torch.testing.assert_close(model.model.layers[0].input_layernorm.weight, gain / scale)
        weight = model.model.layers[0].mlp.down_proj.weight / a_model("llama").model.layers[0].mlp.down_proj.weight
        torch.testing.assert_close(weight[0], smooth.scales["model.layers.0.mlp.down_proj"])
    assert smooth.describe()["gains"] == list(smooth.gains)


@pytest.mark.parametrize("name", ["gemma", "gpt2"])
def test_gains_are_found_in_bfloat16_too(name: str) -> None:
    gains = []
    for dtype in (torch.float32, torch.bfloat16):
        model = a_model(name, dtype)
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.bias.data.normal_(0, 4, generator=torch.Generator().manual_seed(2))
        gains.append(SmoothQuant.of(model, inputs_of(name)).gains)
    assert gains[0] == gains[1] != ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_that_multiplies_by_something_else_is_refused(dtype: torch.dtype) -> None:
    class SquaredNorm(nn.RMSNorm):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * self.weight

    with pytest.raises(UnsupportedModelError, match="SquaredNorm: its gain is neither"):
        gain_of(SquaredNorm(16, 1e-6, dtype=dtype))


def test_a_gain_that_something_else_reads_is_left() -> None:
    routed = SmoothQuant.of(a_model("qwen3_moe"), inputs_of("qwen3_moe"))
    assert not any("post_attention_layernorm" in path for path in routed.gains)  # the router reads it too
    assert any("input_layernorm" in path for path in routed.gains)
    behind = SmoothQuant.of(a_model("bert"), inputs_of("bert"))
    assert behind.gains == ()  # what a post-norm gives is the residual stream as well


def test_ends_of_alpha() -> None:
    model, inputs = a_model("llama"), inputs_of("llama")
    path = "model.layers.1.mlp.down_proj"
    seen = inputs_seen(model, inputs)[path]
    whole = SmoothQuant.of(model, inputs, 1.0).scales[path]
    torch.testing.assert_close((seen / whole).abs().amax(0), torch.ones(48))
    none = SmoothQuant.of(model, inputs, 0.0).scales[path]
    torch.testing.assert_close((model.get_submodule(path).weight * none).abs().amax(0), torch.ones(48))
    with pytest.raises(InputError, match="alpha = 1\\.5"):
        SmoothQuant.of(model, inputs, 1.5)


def an_outlying_channel(model: nn.Module) -> nn.Module:
    """Channel 9 of what enters block 1's attention is 240 times the others, for every token."""
    with torch.no_grad():
        model.model.layers[1].input_layernorm.weight[9] *= 240
    return model


def test_it_recovers_a_channel_that_protecting_tokens_does_not() -> None:
    model = an_outlying_channel(a_model("llama"))
    ids = torch.randint(5, 97, (6, 24), generator=torch.Generator().manual_seed(4))
    plain = logits(model, input_ids=ids)

    def cost(quantizer: QuantizeLinear) -> float:
        with quantizer.applied(model):
            return distance(logits(model, input_ids=ids)[:, 1:], plain[:, 1:])

    nothing, protected = cost(QuantizeLinear(W8, T8)), cost(QuantizeLinear(W8, T8, protect=First(1)))
    smooth = SmoothQuant.of(model, ids)
    smoothed, control = (
        cost(QuantizeLinear(W8, T8, transform=one)) for one in (smooth, smooth.control(torch.Generator(), model, {}))
    )
    assert protected > 0.8 * nothing
    assert smoothed < 0.5 * nothing
    assert control > 2 * smoothed


def test_a_control_is_the_same_factors_elsewhere_and_leaves_the_function() -> None:
    model, inputs = a_model("llama", torch.float64), inputs_of("llama")
    smooth = SmoothQuant.of(model, inputs)
    control = smooth.control(torch.Generator().manual_seed(1), model, inputs)
    plain = logits(model, **inputs)
    with control.applied(model):
        assert distance(logits(model, **inputs), plain) < 1e-6


def test_a_model_it_was_not_made_for_is_refused() -> None:
    smooth = SmoothQuant.of(a_model("llama"), inputs_of("llama"))
    with pytest.raises(InputError, match="made for another model"), smooth.applied(a_model("gpt2")):
        pass
