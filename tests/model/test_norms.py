"""Norms and where they stand, against the formulas written out."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import pytest
import torch
from torch import Tensor, nn

import sinkscope as ss
from sinkscope.model import LabConfig, LabForCausalLM
from sinkscope.model.lab import LabBlock
from sinkscope.model.norms import GatedNorm, PreAffineNorm
from tests.model.test_variants import build

IDS = torch.arange(1, 12)[None]


def rms(x: Tensor, module: nn.Module) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * module.weight


def layer(x: Tensor, module: nn.Module) -> Tensor:
    centered = x - x.mean(-1, keepdim=True)
    return centered / (centered.square().mean(-1, keepdim=True) + 1e-5).sqrt() * module.weight + module.bias


def gated(x: Tensor, module: nn.Module) -> Tensor:
    y = rms(x, module)
    inner = y @ module.down.T
    return y / (1 + (-(inner / (1 + (-inner).exp())) @ module.up.T).exp())


def preaffine(x: Tensor, module: nn.Module) -> Tensor:
    return rms(x * module.scale, module)


def run(model: LabForCausalLM, block: Callable[[LabBlock, nn.Module | None, Tensor, Callable], Tensor]) -> Tensor:
    """Logits with each block written out by `block(layer, norm behind it, stream, attention)`."""
    core, given = model.model, {}
    hook = core.layers[0].register_forward_pre_hook(lambda module, args, kwargs: given.update(kwargs), with_kwargs=True)
    model(IDS, use_cache=False)
    hook.remove()
    stream = core.embed_tokens(IDS)
    for index, one in enumerate(core.layers):
        behind = [*(after.entry_norm for after in core.layers[1:]), core.norm][index]
        stream = block(one, behind, stream, lambda x, one=one: one.self_attn(x, **given)[0])
    return stream


@torch.no_grad()
@pytest.mark.parametrize(("kind", "norm"), [("rmsnorm", rms), ("layernorm", layer)])
def test_post_norm_is_the_papers(kind, norm):
    """x = norm1(x + attn(x)); x = norm2(x + mlp(x)); nothing before the first block, nothing behind the last."""
    model = build(norm_placement="post", norm=kind)

    def block(one, behind, x, attention):
        x = norm(x + attention(x), one.mixer_sum_norm)
        return norm(x + one.mlp(x), behind)

    torch.testing.assert_close(model(IDS).logits, model.lm_head(run(model, block)), atol=2e-5, rtol=1e-4)
    kinds = nn.RMSNorm | nn.LayerNorm
    assert sum(isinstance(module, kinds) for module in model.modules()) == 2 * model.config.num_hidden_layers


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "norm"),
    [("rmsnorm", rms), ("layernorm", layer), ("gated_rmsnorm", gated), ("preaffine_rmsnorm", preaffine)],
)
def test_sandwich_norms_what_enters_and_what_leaves_a_branch(kind, norm):
    model = build(norm_placement="sandwich", norm=kind)

    def block(one, behind, x, attention):
        x = x + norm(attention(norm(x, one.input_layernorm)), one.mixer_output_norm)
        return x + norm(one.mlp(norm(x, one.post_attention_layernorm)), one.mlp_output_norm)

    expected = model.lm_head(norm(run(model, block), model.model.norm))
    torch.testing.assert_close(model(IDS).logits, expected, atol=2e-5, rtol=1e-4)


@torch.no_grad()
def test_the_outlier_protected_block_has_no_norm_and_small_branches():
    model = build(norm_placement="outlier_protected", ffn="relu")
    assert model.config.residual_gain == 0.2
    norms = [name for name, module in model.named_modules() if isinstance(module, nn.RMSNorm)]
    assert norms == ["model.layers.0.entry_norm"]

    def block(one, behind, x, attention):
        if one is model.model.layers[0]:
            x = rms(x, one.entry_norm)
        x = x + 0.2 * attention(x)
        return x + 0.2 * one.mlp(x)

    torch.testing.assert_close(model(IDS).logits, model.lm_head(run(model, block)), atol=2e-5, rtol=1e-4)


@torch.no_grad()
def test_the_gain_of_a_branch_is_a_choice_of_its_own():
    model = build(residual_gain=0.5, norm="layernorm")

    def block(one, behind, x, attention):
        x = x + 0.5 * attention(layer(x, one.input_layernorm))
        return x + 0.5 * one.mlp(layer(x, one.post_attention_layernorm))

    expected = model.lm_head(layer(run(model, block), model.model.norm))
    torch.testing.assert_close(model(IDS).logits, expected, atol=2e-5, rtol=1e-4)
    assert LabConfig(norm_placement="outlier_protected", residual_gain=1.0).residual_gain == 1.0


@torch.no_grad()
def test_massive_activations_of_a_post_norm_model_are_measured_before_the_norm():
    """Behind the norm every token is sqrt(width) long; a planted giant shows in what `measure` calls a depth."""
    torch.manual_seed(0)
    model = LabForCausalLM(LabConfig(vocab_size=53, hidden_size=24, intermediate_size=40, norm_placement="post")).eval()
    layers, normed = model.model.layers, []
    giant = torch.zeros(1, 11, 24)
    giant[0, 0, 3] = 80
    layers[1].mlp.register_forward_hook(lambda module, args, output: output + giant)
    for block in layers[1:]:
        block.entry_norm.register_forward_hook(lambda module, args, output: normed.append(output))
    out = model(IDS, output_hidden_states=True)
    assert len(normed) == 3
    for states in (*normed, out.hidden_states[-1]):
        torch.testing.assert_close(states.norm(dim=-1), torch.full((1, 11), sqrt(24)), atol=1e-3, rtol=1e-3)
    measured = torch.from_numpy(ss.measure(model, IDS).data["hidden_norm"].values[0])
    assert measured.shape == (5, 11)
    assert measured[2, 0] > 10 * measured[2, 1:].max()
    assert measured[3, 0] < 2 * measured[3, 1:].max()
    torch.testing.assert_close(measured[:4], torch.stack(out.hidden_states[:4], 1)[0].norm(dim=-1))


@torch.no_grad()
def test_without_norms_a_block_adds_what_its_branches_make_of_the_stream():
    model = build(norm="none")

    def block(one, behind, x, attention):
        x = x + attention(x)
        return x + one.mlp(x)

    torch.testing.assert_close(model(IDS).logits, model.lm_head(run(model, block)), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(("module", "formula"), [(GatedNorm(7, 3, 1e-5), gated), (PreAffineNorm(7, 1e-5), preaffine)])
def test_norms_with_more_than_a_gain(module: nn.Module, formula: Callable[[Tensor, nn.Module], Tensor]) -> None:
    """In values and gradients; at the start the one is half an RMSNorm and the other a whole one."""
    x, module = torch.randn(2, 5, 7, dtype=torch.float64, requires_grad=True), module.double()
    start = 0.5 if isinstance(module, GatedNorm) else 1.0
    torch.testing.assert_close(module(x), start * rms(x, module))
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    inputs = [x, *module.parameters()]
    wanted, found = formula(x, module), module(x)
    torch.testing.assert_close(found, wanted)
    gradients = [torch.autograd.grad(each.square().sum(), inputs) for each in (found, wanted)]
    torch.testing.assert_close(*gradients)
