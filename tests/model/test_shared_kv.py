"""Layers that read another layer's keys and values: against decoding written out in loops (Wu & Tu 2024)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicSlidingWindowLayer

import sinkscope as ss
from sinkscope.errors import InputError
from sinkscope.hooks import unobserved
from sinkscope.model import LabConfig, LabForCausalLM
from tests.model.test_variants import SIZES, build

IDS = torch.randint(1, 53, (2, 10), generator=torch.Generator().manual_seed(0))
MAPPINGS = [[0, 0, 2], [0, 2, 2], [2, 2, 2], [1, 2, 0], [0, 1, 1]]


def by_token(model: LabForCausalLM, ids: Tensor) -> Tensor:
    """Logits of one row, token by token and head by head, of a model without positions.

    A layer that reads from a later one sees that layer's tokens before this one; any other sees this one too.
    """
    core, kept, logits = model.model, {layer: ([], []) for layer in range(3)}, []
    for token in ids:
        stream = core.embed_tokens(token)
        for index, block in enumerate(core.layers):
            attention, entering = block.self_attn, block.input_layernorm(stream)
            if attention.supplies:
                kept[index][0].append(attention.k_proj(entering))
                kept[index][1].append(attention.v_proj(entering))
            keys, values = kept[model.config.kv_layers[index]]
            heads = []
            for head in range(4):
                part = slice(head // 2 * 6, head // 2 * 6 + 6)  # two query heads for each key-value head
                query = attention.q_proj(entering)[head * 6 : head * 6 + 6]
                scores = [query @ key[part] / 6**0.5 for key in keys]
                weights = torch.stack(scores).softmax(0) if scores else []
                heads.append(sum((w * v[part] for w, v in zip(weights, values, strict=True)), torch.zeros(6)))
            stream = stream + attention.o_proj(torch.cat(heads))
            stream = stream + block.mlp(block.post_attention_layernorm(stream)[None, None])[0, 0]
        logits.append(model.lm_head(core.norm(stream)))
    return torch.stack(logits)


@torch.no_grad()
@pytest.mark.parametrize("mapping", MAPPINGS)
def test_the_parallel_pass_is_decoding_token_by_token(mapping):
    model = build(kv_layers=mapping, position="none")
    torch.testing.assert_close(model(IDS).logits[0], by_token(model, IDS[0]), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_runs_are_exact_for_as_many_tokens():
    """Training with m + b runs agrees with decoding up to token m + b, and from there on it does not."""
    model = build(kv_layers=[2, 2, 2], kv_iterations=3, kv_gradient_iterations=2)
    exact, approximate = model(IDS).logits, model.train()(IDS).logits
    torch.testing.assert_close(approximate[:, :5], exact[:, :5], atol=1e-6, rtol=1e-5)
    assert (approximate[:, 5:] - exact[:, 5:]).abs().amax((0, 2)).min() > 1e-5
    enough = build(kv_layers=[2, 2, 2], kv_iterations=8, kv_gradient_iterations=2)
    enough.load_state_dict(model.state_dict())
    torch.testing.assert_close(enough.train()(IDS).logits, exact, atol=1e-6, rtol=1e-5)


@torch.no_grad()
def test_every_layer_its_own_is_the_standard_model():
    model = build(kv_layers=[0, 1, 2])
    plain = LabForCausalLM(LabConfig(**SIZES)).eval()
    plain.load_state_dict(model.state_dict())
    assert torch.equal(model(IDS).logits, plain(IDS).logits)
    assert model.to_llama().config.num_hidden_layers == 3


@torch.no_grad()
def test_the_first_token_has_nothing_to_attend_to():
    model, seen = build(kv_layers=[2, 2, 2], attention="sink_logit"), []
    for layer in model.model.layers:
        layer.self_attn.register_forward_hook(lambda module, args, output: seen.append(output[0]))
    model(IDS)
    assert (seen[0][:, 0] == 0).all()
    assert (seen[1][:, 0] == 0).all()
    assert (seen[2][:, 0] != 0).any()
    assert (seen[0][:, 1] != 0).any()


@torch.no_grad()
def test_only_supplying_layers_keep_keys_and_values():
    model = build(kv_layers=[0, 2, 2])
    cache = model(IDS, use_cache=True).past_key_values
    assert [layer.keys is not None for layer in cache.layers] == [True, False, True]
    assert cache.layers[2].keys.shape == (2, 2, 10, 6)
    names = {name for name, _ in model.named_parameters() if "k_proj" in name or "v_proj" in name}
    assert names == {f"model.layers.{layer}.self_attn.{kind}_proj.weight" for layer in (0, 2) for kind in "kv"}


def test_no_token_sees_a_later_one():
    model = build(kv_layers=[2, 1, 2], position="alibi")
    embedded = model.get_input_embeddings()(IDS).detach().requires_grad_()
    for token in (0, 4, 9):
        gradient = torch.autograd.grad(model(inputs_embeds=embedded).logits[:, token].sum(), embedded)[0]
        assert (gradient[:, token + 1 :] == 0).all()
        assert (gradient[:, : token + 1] != 0).any(-1).all()


def test_gradients_of_training_flow_through_the_last_runs():
    """Enough of them and they are the exact function's, which differences confirm; one run alone gives others."""
    mapping = {"kv_layers": [2, 2, 2], "norm_placement": "post"}
    exact = build(**mapping).double()
    ids = IDS[:, :5]

    def loss(model: LabForCausalLM) -> Tensor:
        return F.cross_entropy(model(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    def gradients(model: LabForCausalLM) -> list[Tensor]:
        return list(torch.autograd.grad(loss(model), list(model.parameters())))

    expected = gradients(exact)
    trained = []
    for runs in (5, 1):
        model = build(**mapping, kv_iterations=7, kv_gradient_iterations=runs).double().train()
        model.load_state_dict(exact.state_dict())
        trained.append(gradients(model))
    for one, other in zip(trained[0], expected, strict=True):
        torch.testing.assert_close(one, other)
    assert any((one - other).abs().max() > 1e-4 for one, other in zip(trained[1], expected, strict=True))
    names = [name for name, _ in exact.named_parameters()]
    index = names.index("model.layers.2.self_attn.k_proj.weight")
    weight, step, losses = exact.model.layers[2].self_attn.k_proj.weight, 1e-6, []
    with torch.no_grad():
        for sign in (1, -2):
            weight[3, 4] += sign * step
            losses.append(loss(exact).item())
    assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(expected[index][3, 4].item(), rel=1e-5)


@torch.no_grad()
def test_each_layer_is_seen_once_however_often_it_runs():
    model, calls = build(kv_layers=[0, 2, 2]), []
    for index, layer in enumerate(model.model.layers):
        layer.mlp.register_forward_hook(lambda module, args, output, index=index: calls.append(index))
    out = model(IDS, output_hidden_states=True, output_attentions=True)
    assert calls == [0, 1, 2]
    assert (len(out.hidden_states), len(out.attentions)) == (4, 3)
    assert (out.attentions[1].diagonal(dim1=-2, dim2=-1) == 0).all()
    assert (out.attentions[2].diagonal(dim1=-2, dim2=-1) > 0).all()
    assert ss.measure(model, IDS, observers="all").data["attention_received"].shape == (2, 3, 4, 10)


def test_a_twin_shares_everything_but_hooks():
    layer = build(weight_reparam="sigma").model.layers[0]
    layer.mlp.register_forward_hook(lambda module, args, output: output * 0)
    twin = unobserved(layer)
    assert all(one is other for one, other in zip(layer.parameters(), twin.parameters(), strict=True))
    hidden = torch.randn(1, 3, 24)
    assert (layer.mlp(hidden) == 0).all()
    assert (twin.mlp(hidden) != 0).any()
    assert layer.mlp._forward_hooks


@torch.no_grad()
def test_caches_that_can_not_tell_are_refused():
    model = build(kv_layers=[2, 2, 2])
    grown = DynamicCache()
    model(IDS[:, :3], past_key_values=grown)
    with pytest.raises(InputError, match="DynamicCache"):
        model(IDS[:, 3:4], past_key_values=grown)
    sliding = Cache(layers=[DynamicSlidingWindowLayer(sliding_window=4) for _ in range(3)])
    model = build(kv_layers=[0, 2, 2])
    model(IDS[:, :3], past_key_values=sliding)
    with pytest.raises(InputError, match="SlidingWindow"):
        model(IDS[:, 3:4], past_key_values=sliding)


def test_checkpointing_that_loses_gradients_is_refused():
    model = build(kv_layers=[2, 2, 2]).train()
    newest = hasattr(model, "activation_checkpointing_enable")  # its name since transformers 5.23
    (model.activation_checkpointing_enable if newest else model.gradient_checkpointing_enable)({"use_reentrant": True})
    with pytest.raises(InputError, match="use_reentrant"):
        model(IDS, labels=IDS)
