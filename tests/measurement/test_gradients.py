"""Gradients read from a backward pass are those of autograd on the retained states of a naive forward pass."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.models.t5.modeling_t5 import T5LayerNorm

import sinkscope as ss
from sinkscope.errors import InputError
from sinkscope.measurement import GradientNorms, norm_factor
from sinkscope.model import LabConfig, LabForCausalLM
from tests.families.sweep.build import build

SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}


def llama(seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2, use_cache=False))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def ids(rows: int = 3, tokens: int = 9) -> Tensor:
    return torch.randint(0, 40, (rows, tokens), generator=torch.Generator().manual_seed(1))


def naive(model: LlamaForCausalLM, tokens: Tensor) -> dict[str, list[Tensor]]:
    """The blocks written out, each state retained; gradients by `torch.autograd.grad`."""
    inner = model.model
    x = inner.embed_tokens(tokens)
    angles = inner.rotary_emb(x, torch.arange(tokens.shape[1])[None])
    stream, views, outputs = [x], [], []
    mask = torch.full((tokens.shape[1],) * 2, -torch.inf).triu(1)[None, None]
    for block in inner.layers:
        for norm, branch in (
            (block.input_layernorm, lambda y, b=block: b.self_attn(y, angles, mask)[0]),
            (block.post_attention_layernorm, block.mlp),
        ):
            views.append(view := x.clone())
            outputs.append(y := norm(view))
            x = x + branch(y)
            stream.append(x)
    logits = model.lm_head(inner.norm(x))
    loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    found = torch.autograd.grad(loss, [*stream, *views, *outputs])
    many = len(views)
    return {"stream": [*found[: many + 1]], "views": [*found[many + 1 : 2 * many + 1]], "outputs": [*found[-many:]]}


def test_lengths_are_those_of_autograd() -> None:
    model, tokens = llama(), ids()
    wanted = {name: [g.norm(dim=-1) for g in found] for name, found in naive(model, tokens).items()}
    with GradientNorms(model) as gradients:
        model(tokens, labels=tokens).loss.backward()
    data = gradients.data
    assert dict(data.sizes) == {"sample": 3, "depth": 3, "position": 9, "layer": 2, "branch": 2}
    for depth in range(3):
        np.testing.assert_allclose(data.stream[:, depth], wanted["stream"][2 * depth], rtol=1e-4, atol=1e-9)
    for layer in range(2):
        for branch in range(2):
            place = 2 * layer + branch
            for name, values in (
                ("arriving", wanted["stream"][place + 1]),
                ("norm_output", wanted["outputs"][place]),
                ("norm_input", wanted["views"][place]),
                ("leaving", wanted["stream"][place]),
            ):
                np.testing.assert_allclose(data[name][:, layer, branch], values, rtol=1e-4, atol=1e-9)
    outputs = wanted["outputs"][0]
    ratio = outputs[:, 2] / outputs[:, [0, 1, 3, 4, 5, 6, 7, 8]].mean(1)
    np.testing.assert_allclose(gradients.sink_ratio(2)[:, 0, 0], ratio, rtol=1e-4)
    ratios = gradients.ratios()
    np.testing.assert_allclose(
        ratios.bloat * ratios.compress, (data.norm_input / data.arriving).where(data.arriving > 0), rtol=1e-4
    )


@pytest.mark.parametrize("make", [nn.RMSNorm, nn.LayerNorm, T5LayerNorm])
def test_the_jacobian_of_a_norm_without_its_factor(make: Callable[..., nn.Module]) -> None:
    """Jᵀ g = factor · (γ g − mean(γ g)? − x̂ · mean(x̂ γ g)), exactly, the middle term for LayerNorm."""
    torch.manual_seed(0)
    norm = make(12, eps=0.1)
    norm.weight.data.normal_()
    norm = norm if make is T5LayerNorm else norm.double()  # T5's computes in fp32
    x, g = torch.randn(7, 12, dtype=torch.float64) * 5, torch.randn(7, 12, dtype=torch.float64)
    x.requires_grad_()
    (wanted,) = torch.autograd.grad(norm(x), x, g)
    factor = norm_factor(x.detach(), norm).double()[:, None]
    centered = make is nn.LayerNorm
    hat = (x - x.mean(-1, keepdim=True) if centered else x).detach() * factor
    scaled = norm.weight.detach() * g
    rest = scaled - hat * (hat * scaled).mean(-1, keepdim=True) - (scaled.mean(-1, keepdim=True) if centered else 0)
    torch.testing.assert_close(factor * rest, wanted, rtol=1e-6, atol=1e-6)
    assert not torch.allclose(rest, wanted, atol=1e-2)


def test_a_massive_token_is_compressed_by_its_length() -> None:
    """The same direction, a hundred times as long: its norm shrinks the gradient a hundred times as much."""
    model, tokens = llama(), ids(1)
    with torch.no_grad():
        model.model.embed_tokens.weight[tokens[0, 0]] *= 100
    with GradientNorms(model) as gradients:
        model(tokens, labels=tokens).loss.backward()
    rest = gradients.ratios().compress / gradients.data.norm_factor
    assert gradients.data.norm_factor[0, 0, 0, 0] < 0.05 * gradients.data.norm_factor[0, 0, 0, 1:].min()
    assert gradients.ratios().compress[0, 0, 0, 0] < 0.1 * gradients.ratios().compress[0, 0, 0, 1:].min()
    assert 0.2 < rest[0, 0, 0, 0] / rest[0, 0, 0, 1:].mean() < 5


def checkpointing(model: nn.Module, use_reentrant: bool) -> None:
    newest = hasattr(model, "activation_checkpointing_enable")  # its name since transformers 5.23
    enable = model.activation_checkpointing_enable if newest else model.gradient_checkpointing_enable
    enable({"use_reentrant": use_reentrant})


def test_checkpointing_changes_nothing() -> None:
    tokens, found = ids(), []
    for checkpointed in (False, True):
        model = llama().train()
        if checkpointed:
            checkpointing(model, use_reentrant=False)
        with GradientNorms(model) as gradients:
            model(tokens, labels=tokens).loss.backward()
        found.append(gradients.data)
    for name in found[0]:
        np.testing.assert_allclose(found[1][name], found[0][name], rtol=1e-5, err_msg=str(name))


@pytest.mark.parametrize("half", ["autocast", "weights"])
def test_half_precision(half: str) -> None:
    tokens, found = ids(), []
    for context in (nullcontext(), torch.autocast("cpu", torch.bfloat16)):
        model = llama()
        if half == "weights" and not isinstance(context, nullcontext):
            model, context = model.to(torch.bfloat16), nullcontext()
        with GradientNorms(model) as gradients, context:
            model(tokens, labels=tokens).loss.backward()
        found.append(gradients.data)
    assert found[1].norm_input.dtype == np.float32
    for name in ("stream", "norm_output", "norm_input"):
        np.testing.assert_allclose(found[1][name].mean(), found[0][name].mean(), rtol=0.1)


def test_training_is_bit_for_bit_the_same_and_micro_batches_add_samples() -> None:
    weights = []
    for reads in (False, True):
        model = llama()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            with GradientNorms(model) if reads else nullcontext() as gradients:
                for part in ids(4).split(2):
                    (model(part, labels=part).loss / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
        weights.append(list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))
    assert gradients is not None
    assert gradients.data.sizes["sample"] == 4


def test_padding_is_left_out() -> None:
    model, tokens = llama(), ids(2, 6)
    mask = torch.ones_like(tokens)
    mask[1, :2] = 0
    with GradientNorms(model) as gradients:
        model(tokens, attention_mask=mask, labels=tokens.masked_fill(mask == 0, -100)).loss.backward()
    assert np.isnan(gradients.data.stream[1, :, 4:]).all()
    assert not np.isnan(gradients.data.stream[1, :, :4]).any()


def test_branches_beside_each_other_share_what_arrives() -> None:
    torch.manual_seed(0)
    model, tokens = GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES, use_parallel_residual=True)).eval(), ids()
    with GradientNorms(model) as gradients:
        model(tokens, labels=tokens).loss.backward()
    data = gradients.data
    np.testing.assert_allclose(data.arriving[:, 0, 0], data.stream[:, 1])
    np.testing.assert_allclose(data.arriving[:, 0, 1], data.stream[:, 1])
    np.testing.assert_allclose(data.leaving[:, 0, 1], data.stream[:, 0])
    assert (data.norm_output[:, :, 0] != data.norm_output[:, :, 1]).any()


@pytest.mark.parametrize("kind", ["phi", "opt", "gemma2", "qwen3_moe"])
def test_blocks_of_other_shapes(kind: str) -> None:
    """One norm for two branches, rows and positions joined, norms behind a branch too, experts."""
    model, tokens = build(kind, "eager"), ids(2, 7)
    with GradientNorms(model) as gradients:
        model(tokens, labels=tokens).loss.backward()
    data = gradients.data
    np.testing.assert_array_equal(
        np.isnan(data.norm_output).any(("sample", "layer", "position")), [False, kind == "phi"]
    )
    np.testing.assert_allclose(data.leaving[:, 0, 0], data.stream[:, 0])
    np.testing.assert_allclose(data.arriving[:, 1, int(kind != "phi")], data.stream[:, 2])


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich"])
def test_only_pre_norm_branches_have_the_four_gradients(placement: str) -> None:
    torch.manual_seed(0)
    model, tokens = LabForCausalLM(LabConfig(**SIZES, norm_placement=placement)), ids()
    with GradientNorms(model) as gradients:
        model(tokens, labels=tokens).loss.backward()
    assert not np.isnan(gradients.data.stream).any()
    assert bool(np.isnan(gradients.data.norm_output).all()) == (placement == "post")


def test_lora_with_frozen_embeddings_reads_what_there_is() -> None:
    model, tokens = llama(), ids()
    model.requires_grad_(False)
    model.model.layers[1].self_attn.v_proj.weight.requires_grad_(True)
    with GradientNorms(model) as gradients:
        model(tokens, labels=tokens).loss.backward()
    assert np.isnan(gradients.data.stream[:, 0]).all()
    assert not np.isnan(gradients.data.stream[:, 2]).any()


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="expected a model, got a str"):
        GradientNorms("nano")  # type: ignore[arg-type]
    model, tokens = llama(), ids()
    with GradientNorms(model) as gradients:
        with pytest.raises(InputError, match="is open already"), gradients:
            pass
        with torch.no_grad():
            model(tokens)
    with pytest.raises(InputError, match="no gradient reached the residual stream"):
        gradients.data  # noqa: B018
    with GradientNorms(model) as gradients:
        model(tokens, labels=tokens).loss.backward()
    with pytest.raises(InputError, match="position 9: rows have positions 0 to 8"):
        gradients.sink_ratio(9)
    with ss.GradientNorms(model), torch.inference_mode(), pytest.raises(InputError, match="inference mode has none"):
        model(tokens)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    if not hasattr(model, "activation_checkpointing_enable"):
        return  # older versions of transformers run a block's hooks where it is recomputed, with a graph
    checkpointing(model.train(), use_reentrant=True)
    model.enable_input_require_grads()
    with GradientNorms(model), pytest.raises(InputError, match="enable it with use_reentrant=False"):
        model(tokens)
