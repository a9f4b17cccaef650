"""Operations on a Llama against formulas written out here, in the place of the family's own eager function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM
from transformers.models.llama import modeling_llama

import sinkscope as ss
from tests.model.attached.hosts import host, inputs, output, stir

Learned = dict[str, Tensor]


def off_by_one(scores: Tensor, values: Tensor, query: Tensor, learned: Learned) -> Tensor:
    weights = scores.exp() / (1 + scores.exp().sum(-1, keepdim=True))
    return weights @ values


def sink_logit(scores: Tensor, values: Tensor, query: Tensor, learned: Learned) -> Tensor:
    sink = learned["slot_modules.0.logit"].exp()[None, :, None, None]
    return scores.exp() / (sink + scores.exp().sum(-1, keepdim=True)) @ values


def kv_bias(scores: Tensor, values: Tensor, query: Tensor, learned: Learned) -> Tensor:
    key, value = (learned[f"slot_modules.0.{part}"].repeat_interleave(2, 0) for part in ("key", "value"))
    extra = torch.einsum("bhtd,hd->bht", query, key) / query.shape[-1] ** 0.5
    weights = torch.cat([extra[..., None], scores], -1).softmax(-1)
    return weights[..., :1] * value[:, None] + weights[..., 1:] @ values


def sigmoid(scores: Tensor, values: Tensor, query: Tensor, learned: Learned) -> Tensor:
    return torch.sigmoid(scores) @ values


def gated_head(scores: Tensor, values: Tensor, query: Tensor, learned: Learned) -> Tensor:
    slices = learned["hidden"].unflatten(-1, (4, -1))
    gate = torch.sigmoid(
        torch.einsum("bthd,hd->bht", slices, learned["output_modules.0.weight"]) + learned_bias(learned)
    )
    return gate[..., None] * (scores.softmax(-1) @ values)


def learned_bias(learned: Learned) -> Tensor:
    return learned["output_modules.0.bias"][:, None]


FORMULAS = {
    "softmax_off_by_one": off_by_one,
    "sink_logit": sink_logit,
    "kv_bias": kv_bias,
    "sigmoid": sigmoid,
    "gated_head": gated_head,
}


def naive(formula: Callable[..., Tensor], operations: dict[int, Learned]) -> Callable[..., Any]:
    """An eager function of the family: no grouped heads, a triangle, one formula."""

    def forward(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float, **_: Any) -> Any:
        keys, values = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
        scores = query @ keys.mT * scaling
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        found = formula(scores.masked_fill(hidden, -torch.inf), values, query, operations[module.layer_idx])
        return found.transpose(1, 2), None

    return forward


@pytest.mark.parametrize("name", FORMULAS)
def test_logits_follow_the_formula(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = host("llama"), inputs("llama")
    ss.attach(model, name, start="as_is")
    stir(model)
    operations = {
        index: {path: parameter.detach() for path, parameter in layer.self_attn.operation.named_parameters()}
        for index, layer in enumerate(model.model.layers)
    }
    found = output(model, given)
    reference = host("llama", "eager")
    for index, layer in enumerate(reference.model.layers):
        layer.self_attn.register_forward_pre_hook(note(operations[index]), with_kwargs=True)
    monkeypatch.setattr(modeling_llama, "eager_attention_forward", naive(FORMULAS[name], operations))
    torch.testing.assert_close(found, output(reference, given), atol=1e-5, rtol=1e-5)


def note(learned: Learned) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        learned["hidden"] = kwargs["hidden_states"]

    return hook


def test_norms_of_queries_and_keys_act_before_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same norms put by hand around the family's rotation."""
    model, given = host("llama"), inputs("llama")
    ss.attach(model, "qk_norm")
    found = output(model, given)
    rotate = modeling_llama.apply_rotary_pos_emb

    def normed(query: Tensor, key: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        def unit(x: Tensor) -> Tensor:
            return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()

        return rotate(unit(query), unit(key), *rest)

    reference: LlamaForCausalLM = host("llama", "eager")
    assert (output(reference, given) - found).abs().max() > 1e-3
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", normed)
    torch.testing.assert_close(found, output(reference, given), atol=1e-5, rtol=1e-5)
