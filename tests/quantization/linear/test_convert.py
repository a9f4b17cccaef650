"""Integer weights of torchao beside what simulates them."""

from __future__ import annotations

import importlib.util

import pytest
from torch import Tensor, nn

import sinkscope as ss
from sinkscope.data import build_inputs
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.model import load_tokenizer
from sinkscope.quantization import Grid, QuantizeLinear, converted, fake_quantize, linear_maps
from tests.quantization.linear.conftest import a_model, logits, parameters

MISSING = importlib.util.find_spec("torchao") is None
needs_torchao = pytest.mark.skipif(MISSING, reason="torchao is not installed: pip install 'sinkscope[quantize]'")
W8, T8 = Grid(8, symmetric=True), Grid(8, "tensor", symmetric=True)
SMALLER = Grid(4), Grid(4, group=16), Grid(3, group=16)


@pytest.mark.skipif(not MISSING, reason="torchao is installed")
def test_without_torchao_its_extra_is_named() -> None:
    with pytest.raises(InputError, match=r"sinkscope\[quantize\]"):
        converted(a_model("llama"), W8)


def loss(model: nn.Module, ids: Tensor) -> float:
    found = logits(model, input_ids=ids)[:, :-1].log_softmax(-1)
    return -float(found.gather(2, ids[:, 1:, None]).mean())


@needs_torchao
@pytest.mark.slow
@pytest.mark.parametrize(
    ("weights", "activations"), [(W8, None), (W8, W8), (W8, T8), *((grid, None) for grid in SMALLER)]
)
def test_real_and_simulated_agree(weights: Grid, activations: Grid | None) -> None:
    model = ss.load("nano").eval()
    ids = build_inputs(
        "natural", tokenizer=load_tokenizer("nano"), vocab_size=2048, tokens=128, samples=32, seed=0, bos="add"
    ).input_ids
    before, plain = parameters(model), loss(model, ids)
    real = loss(converted(model, weights, activations), ids)
    with QuantizeLinear(weights, activations).applied(model):
        simulated = loss(model, ids)
    assert abs(real - simulated) < 1e-2
    assert abs(real - plain) > 1e-5
    assert all(value is before[key] for key, value in parameters(model).items())


@needs_torchao
@pytest.mark.slow
def test_codes_are_torchaos_within_one_step() -> None:
    model = a_model("llama")
    made = linear_maps(model)
    real = converted(model, W8)
    for path, one in made.items():
        weight = one.weight.detach()
        theirs = real.get_submodule(path).weight.dequantize()
        step = weight.abs().amax(-1, keepdim=True) / 127
        assert ((fake_quantize(weight, W8) - theirs).abs() <= 1.01 * step).all()


@needs_torchao
@pytest.mark.slow
def test_what_torchao_cannot_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"c_attn.*Conv1D"):
        converted(a_model("gpt2"), W8)
    with pytest.raises(UnsupportedModelError, match="experts"):
        converted(a_model("qwen3_moe"), W8)
    with pytest.raises(InputError, match="multiplies in int8"):
        converted(a_model("llama"), Grid(4), T8)
    with pytest.raises(InputError, match="2 to 8 bits"):
        converted(a_model("llama"), Grid(12))
