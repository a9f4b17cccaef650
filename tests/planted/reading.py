"""What a model does, read the plainest way: eager attention maps and hooks. The tests' truth, independent of probes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel


@dataclass(frozen=True)
class Reading:
    """`maps` (layer, sample, head, query, key), `hidden` (depth, sample, position, dim), `values` (layer, sample,
    position, kv head, dim)."""

    maps: torch.Tensor
    hidden: torch.Tensor
    values: torch.Tensor

    def received(self, causal: bool = True) -> torch.Tensor:
        """(layer, sample, head, position): mean weight over the queries that see a key."""
        tokens = self.maps.shape[-1]
        queries = tokens - torch.arange(tokens) if causal else torch.full((tokens,), tokens)
        return self.maps.sum(-2) / queries

    def massive(self, depth: int) -> set[tuple[int, int]]:
        """The (position, dimension) pairs with |a| > 100 and |a| > 1000 × median |a|, in any sample."""
        size = self.hidden[depth].abs()
        found = (size > 100) & (size > 1000 * size.flatten(1).median(1).values[:, None, None])
        return {(position, dimension) for _, position, dimension in found.nonzero().tolist()}

    def value_ratio(self, position: int) -> torch.Tensor:
        """(layer,): ‖v‖ at a position over its mean elsewhere."""
        norms = self.values.norm(dim=-1).mean((1, 3))
        elsewhere = [other for other in range(norms.shape[1]) if other != position]
        return norms[:, position] / norms[:, elsewhere].mean(1)


def read(model: PreTrainedModel, ids: torch.Tensor) -> Reading:
    """One eager forward pass over a Llama, GPT-2 or BERT."""
    blocks, projections = _sites(model)
    hidden: list[torch.Tensor] = []
    values: list[torch.Tensor] = []
    heads = getattr(model.config, "num_key_value_heads", model.config.num_attention_heads)
    width = model.config.hidden_size // model.config.num_attention_heads * heads
    hooks = [blocks[0].register_forward_pre_hook(lambda _, args: hidden.append(args[0]))]
    hooks += [block.register_forward_hook(lambda _, __, out: hidden.append(_tensor(out))) for block in blocks]
    hooks += [site.register_forward_hook(lambda _, __, out: values.append(out[..., -width:])) for site in projections]
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            maps = model(ids, output_attentions=True).attentions
    finally:
        model.set_attn_implementation(before)
        for hook in hooks:
            hook.remove()
    return Reading(torch.stack(maps), torch.stack(hidden), torch.stack(values).unflatten(-1, (heads, -1)))


def _tensor(output: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    return output[0] if isinstance(output, tuple) else output


def _sites(model: PreTrainedModel) -> tuple[list[torch.nn.Module], list[torch.nn.Module]]:
    """The blocks, and in each the projection whose output ends with the values."""
    family = model.config.model_type
    if family == "llama":
        return list(model.model.layers), [block.self_attn.v_proj for block in model.model.layers]
    if family == "gpt2":
        return list(model.transformer.h), [block.attn.c_attn for block in model.transformer.h]
    if family == "bert":
        layers = model.bert.encoder.layer
        return list(layers), [block.attention.self.value for block in layers]
    raise ValueError(f"no sites written down for {family}")
