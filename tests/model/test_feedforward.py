"""The feed-forwards against their formulas, how many parameters they have, and how they start."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sinkscope.model import LabConfig, LabForCausalLM
from sinkscope.model.feedforward import DownProjection, FeedForward

WIDTH, INNER = 12, 20


def silu(x: Tensor) -> Tensor:
    return x / (1 + (-x).exp())


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / 2**0.5)) / 2


def relu(x: Tensor) -> Tensor:
    return x.clamp(min=0)


GATED = {"swiglu": silu, "geglu": gelu, "reglu": relu}
ACTIVATIONS = GATED | {
    "swish": silu,
    "gelu": gelu,
    "relu": relu,
    "relu_squared": lambda x: relu(x) ** 2,
    "linear": lambda x: x,
}


def made(ffn: str, **fields: object) -> FeedForward:
    return FeedForward(LabConfig(hidden_size=WIDTH, num_attention_heads=1, intermediate_size=INNER, ffn=ffn, **fields))


@pytest.mark.parametrize("ffn", ACTIVATIONS)
def test_each_is_its_formula(ffn):
    module, x = made(ffn).double(), torch.randn(2, 5, WIDTH, dtype=torch.float64)
    weights = dict(module.named_parameters())
    inner = x @ weights["up_proj.weight"].T
    if ffn in GATED:
        inner = ACTIVATIONS[ffn](x @ weights["gate_proj.weight"].T) * inner
    else:
        assert "gate_proj.weight" not in weights
        inner = ACTIVATIONS[ffn](inner)
    torch.testing.assert_close(module(x), inner @ weights["down_proj.weight"].T)


@pytest.mark.parametrize("ffn", ACTIVATIONS)
def test_gradients_are_those_of_differences(ffn):
    module, x = made(ffn).double(), torch.randn(1, 2, WIDTH, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(module, (x,))


@pytest.mark.parametrize("ffn", ACTIVATIONS)
def test_parameters_as_in_the_paper_or_matched(ffn):
    """The paper gives its six the same inner width, so that two matrices have a third fewer parameters than three."""
    as_published = sum(parameter.numel() for parameter in made(ffn).parameters())
    assert as_published == (3 if ffn in GATED else 2) * WIDTH * INNER
    assert (
        sum(parameter.numel() for parameter in made(ffn, ffn_match_parameters=True).parameters()) == 3 * WIDTH * INNER
    )


@pytest.mark.parametrize("ffn", ACTIVATIONS)
def test_only_the_output_of_a_swiglu_starts_smaller(ffn):
    torch.manual_seed(0)
    config = LabConfig(hidden_size=128, num_hidden_layers=5, intermediate_size=200, ffn=ffn, vocab_size=8)
    down = LabForCausalLM(config).model.layers[1].mlp.down_proj
    expected = 200**-0.5 / 5 if ffn == "swiglu" else (2 / (5 * 200)) ** 0.5
    assert down.weight.std().item() == pytest.approx(expected, rel=0.05)
    assert isinstance(down, DownProjection) == (ffn == "swiglu")


def test_a_model_without_one_is_its_attention_alone():
    """The same as one whose feed-forwards write zeros; and no parameter is left that nothing trains."""
    fields = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": INNER}
    without, zeroed = (LabForCausalLM(LabConfig(vocab_size=9, ffn=ffn, **fields)) for ffn in ("none", "relu"))
    missing = zeroed.load_state_dict(without.state_dict(), strict=False).missing_keys
    assert missing
    assert all(".mlp." in name or ".post_attention_layernorm." in name for name in missing)
    for block in zeroed.model.layers:
        torch.nn.init.zeros_(block.mlp.down_proj.weight)
    ids = torch.randint(0, 9, (2, 7))
    torch.testing.assert_close(without(ids).logits, zeroed(ids).logits)
    without(ids, labels=ids).loss.backward()
    assert all(parameter.grad is not None for parameter in without.parameters())
