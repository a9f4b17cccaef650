"""Which heads need the whole text, by the effect of cutting each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from sinkscope.caches.masks import addends
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import Editor, attention_layers, editing, evaluating, family, text_config, unwrapped


def head_effects(
    model: nn.Module, inputs: Mapping[str, Any], sinks: int = 4, recent: int = 64
) -> Float[np.ndarray, "layer kv_head"]:
    """How much the loss grows, in nats per token, if one key-value head sees only its first and last tokens.

    One row per layer of full attention. `inputs`: the model's inputs, with input_ids, padded on either side; the mean
    is over all real next tokens. Use texts that require distant tokens; on others, no head seems to be needed.
    `HeadClasses(head_effects(...) > 0.01, small)` turns the result into a budget. Cost: one pass per head.

    Raises `InputError` if no query is further from the start than `sinks` and `recent` reach.
    """
    model = unwrapped(model)
    ids = inputs.get("input_ids")
    if not isinstance(ids, Tensor) or ids.ndim != 2:
        raise InputError("head_effects: inputs need input_ids (batch, tokens), whose next-token loss is measured")
    real = inputs.get("attention_mask")
    real = torch.ones_like(ids) if real is None else real.to(ids.device)
    tokens = int(real.sum(-1).max())
    if tokens <= sinks + recent:
        raise InputError(
            f"head_effects: texts of {tokens} tokens are covered by {sinks} sinks and {recent} recent tokens: give "
            "longer texts"
        )
    kinds = getattr(text_config(model), "layer_types", None)
    layers = [
        module
        for module, layer in attention_layers(model).items()
        if layer.stack == "decoder" and (not kinds or kinds[layer.index] in ("full_attention", "hybrid"))
    ]
    config = text_config(model)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    cut = _Cut(sinks, recent, heads, real.cumsum(-1) - 1)
    with evaluating(model), torch.no_grad(), editing(cut):
        whole = _loss(model, inputs, real)
        effects = np.zeros((len(layers), heads))
        for row, module in enumerate(layers):
            for head in range(heads):
                cut.module, cut.head = module, head
                effects[row, head] = _loss(model, inputs, real) - whole
                cut.module = None
    return effects


class _Cut(Editor):
    """Hides the middle of the text from one key-value head of one module. `places` count real tokens."""

    def __init__(self, sinks: int, recent: int, heads: int, places: Int[Tensor, "batch position"]) -> None:
        self.sinks, self.recent, self.heads, self.places = sinks, recent, heads, places
        self.module: nn.Module | None = None
        self.head = 0

    def edits(self, module: nn.Module) -> bool:
        return module is self.module

    def given(self, module: nn.Module, implementation: str | None, arguments: dict[str, Any]) -> dict[str, Any]:
        query, key, mask = arguments["query"], arguments["key"], arguments.get("attention_mask")
        if implementation not in (None, "eager", "sdpa") or not (mask is None or isinstance(mask, Tensor)):
            raise UnsupportedModelError(f"family '{family(module)}': cutting heads needs sdpa or eager attention")
        columns = torch.arange(key.shape[2], device=key.device)
        near = self.places[:, :, None] - self.places[:, None] < self.recent
        kept = (near | (self.places < self.sinks)[:, None])[:, None]
        causal = columns <= columns[:, None]
        cut_head = torch.arange(query.shape[1], device=key.device) // (query.shape[1] // self.heads) == self.head
        # (batch, heads, query, key)
        seen = (kept | ~cut_head[:, None, None]) & causal
        if mask is None:
            new_mask = seen if implementation == "sdpa" else addends(seen, query.dtype)
        elif mask.dtype == torch.bool:
            new_mask = mask[..., : key.shape[2]] & seen
        else:
            new_mask = mask[..., : key.shape[2]].masked_fill(~seen, torch.finfo(mask.dtype).min)
        return arguments | {"attention_mask": new_mask}


def _loss(model: nn.Module, inputs: Mapping[str, Any], real: Tensor) -> float:
    logits, ids = model(**inputs).logits[:, :-1].float(), inputs["input_ids"][:, 1:]
    losses = functional.cross_entropy(logits.flatten(0, 1), ids.flatten(), reduction="none").view_as(ids)
    counts = (real[:, :-1] * real[:, 1:]).to(losses.dtype)
    return float((losses * counts).sum() / counts.sum())
