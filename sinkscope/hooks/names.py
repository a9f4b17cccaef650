"""Transformers' names for the linear maps of attention layers and feed-forwards, and layers found by these names."""

from __future__ import annotations

from typing import Literal

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from sinkscope.hooks.modules import CROSS, Layer, attention_layers, block_lists, has_attention, no_attention

Kind = Literal[
    "query", "key", "value", "output", "query_latent", "latent", "rotary_key", "gate", "up", "down", "experts", "other"
]

QUERY = ("q_proj", "query", "q", "q_lin")
KEY = ("k_proj", "key", "k", "k_lin")
VALUE = ("v_proj", "value", "v", "v_lin")
OUTPUT = ("o_proj", "out_proj", "c_proj", "dense", "o", "wo", "Wo", "proj", "out_lin")
KEY_NORM = ("k_norm", "k_layernorm", "key_norm", "key_layernorm")
IN_ROW = ("c_attn", "qkv_proj", "Wqkv", "qkv", "in_proj")  # all queries, then all keys, then all values
PER_HEAD = ("query_key_value",)  # for each key-value head: the queries of its group, its key, its value
INTERLEAVED = {
    "CodeGenAttention": 4
}  # that many parts, each with its queries, values and keys, whatever the name suggests
LATENT = (
    "kv_a_proj_with_mqa",
    "kv_b_proj",
)  # MLA: the latent with the rotated key, and the keys and values from the latent
QUERY_LATENT = ("q_a_proj", "q_b_proj")
FEED_FORWARD: dict[str, Kind] = {
    **dict.fromkeys(("gate_proj", "wi_0", "w1"), "gate"),
    **dict.fromkeys(("up_proj", "wi_1", "w3"), "up"),
    **dict.fromkeys(("c_fc", "fc1", "dense_h_to_4h", "intermediate.dense", "lin1", "wi", "fc_in"), "up"),  # no gate
    **dict.fromkeys(("down_proj", "c_proj", "fc2", "dense_4h_to_h", "output.dense", "lin2", "wo", "w2"), "down"),
    **dict.fromkeys(("ffn", "ffn.0", "intermediate_dense"), "up"),
    **dict.fromkeys(("fc_out", "ffn_output", "ffn.2", "output_dense", "output_linear", "mlp.Wo"), "down"),
}
GATE_AND_UP = ("gate_up_proj", "input_linear", "Wi")  # all of the gate, then all of the rest
HEAD_DIM = ("qk_head_dim", "head_dim", "attention_head_size", "head_size", "key_value_proj_dim")
HEADS = ("num_heads", "n_heads", "num_attention_heads")


def is_linear(module: nn.Module | None) -> bool:
    """Whether a module is a linear map in one of the two forms that transformers has."""
    return isinstance(module, nn.Linear | Conv1D)


def makes_queries_keys_values(module: nn.Module) -> bool:
    """Whether a module's children include the linear maps for queries, keys and values, or one map for all."""
    linear = {name for name, child in module.named_children() if is_linear(child)}
    return any(name in linear for name in (*IN_ROW, *PER_HEAD)) or all(
        any(name in linear for name in names) for names in (QUERY, KEY, VALUE)
    )


def heads_of(model: nn.Module, attention: nn.Module) -> int | None:
    """Query heads of an attention layer, from the layer or its configuration; None if neither has them."""
    config = getattr(attention, "config", None) or getattr(model, "config", None)
    counts = (getattr(place, name, None) for place in (attention, config) for name in HEADS)
    return next((count for count in counts if isinstance(count, int)), None)


def attention_modules(model: nn.Module) -> dict[nn.Module, Layer]:
    """The attention layers of a model, those that dispatch or else its `own_attention`, in the model's order.

    Raises `UnsupportedModelError` where there is none.
    """
    if has_attention(model):
        return attention_layers(model)
    if not (modules := own_attention(model)):
        raise no_attention(model)
    return modules


def own_attention(model: nn.Module) -> dict[nn.Module, Layer]:
    """The modules that compute attention in their own code, with the labels of the maps that they return.

    Per block: the module that makes queries, keys and values, and the one of cross-attention. A stack is left out
    unless each block has exactly one; a model with a dispatching attention layer has none.
    """
    if not isinstance(model, PreTrainedModel) or has_attention(model):
        return {}
    layers: dict[nn.Module, Layer] = {}
    for stack, blocks in block_lists(model).items():
        for crosses in (False, True):
            places = [_attending(model, block, crosses) for block in blocks.values()]
            if any(len(place) != 1 for place in places):
                continue
            name = "cross" if crosses else stack
            for index, (path, (module,)) in enumerate(zip(blocks, places, strict=True)):
                layers[module] = Layer(f"cross.{index}" if crosses else path, index, name)
    return layers


def _attending(model: nn.Module, block: nn.Module, crosses: bool) -> list[nn.Module]:
    return [
        module
        for path, module in block.named_modules()
        if makes_queries_keys_values(module)
        and heads_of(model, module) is not None
        and any(mark in path.lower() for mark in CROSS) == crosses
    ]
