"""Attention layers of families that compute attention in code of their own, outside transformers' interface."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel

from sinkscope.hooks.modules import CROSS, Layer, attention_layers, block_lists, has_attention, no_attention
from sinkscope.hooks.names import heads_of, makes_queries_keys_values


def attention_modules(model: nn.Module) -> dict[nn.Module, Layer]:
    """The attention layers of a model, those that dispatch or else its `own_attention`, in the model's order.

    Raises `UnsupportedModelError` where there is none.
    """
    if has_attention(model):
        return attention_layers(model)
    if not (found := own_attention(model)):
        raise no_attention(model)
    return found


def own_attention(model: nn.Module) -> dict[nn.Module, Layer]:
    """The modules in whose own code attention is computed, with the labels that the maps they return have.

    In each block the one that makes queries, keys and values, and the one of cross-attention. A stack of which not
    every block has one, and no more, has none; nor has a model in which an attention layer dispatches.
    """
    if not isinstance(model, PreTrainedModel) or has_attention(model):
        return {}
    found: dict[nn.Module, Layer] = {}
    for stack, blocks in block_lists(model).items():
        for crosses in (False, True):
            places = [_attending(model, block, crosses) for block in blocks.values()]
            if any(len(place) != 1 for place in places):
                continue
            name = "cross" if crosses else stack
            for index, (path, (module,)) in enumerate(zip(blocks, places, strict=True)):
                found[module] = Layer(f"cross.{index}" if crosses else path, index, name)
    return found


def _attending(model: nn.Module, block: nn.Module, crosses: bool) -> list[nn.Module]:
    return [
        module
        for path, module in block.named_modules()
        if makes_queries_keys_values(module)
        and heads_of(model, module) is not None
        and any(mark in path.lower() for mark in CROSS) == crosses
    ]
