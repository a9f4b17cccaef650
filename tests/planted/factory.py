"""The project's ground truth: real transformers models whose weights are written by hand, so that the answer is known.

`planted_model(plant)` is a small random Llama in which a few weights are overwritten (`weights.py` says which and why);
`null_model()` is the same Llama without them: with the same sizes, seed and dimension nothing else differs. `plant.py`
holds what can be planted. Use a model on `planted_ids(plant)`, up to a few hundred tokens; on longer texts the many
ordinary keys take a visible share. Other families: `families.py`.
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from tests.planted.plant import F3, NULL, SINK_TOKEN, Plant, planted_ids
from tests.planted.weights import (
    Block,
    write_mark,
    write_ordinary_block,
    write_ordinary_embedding,
    write_ordinary_reader,
    write_plant,
)

__all__ = ["F3", "NULL", "SINK_TOKEN", "Plant", "null_model", "planted_ids", "planted_model"]


def planted_model(
    plant: Plant = F3,
    *,
    layers: int = 4,
    heads: int = 4,
    kv_heads: int = 2,
    width: int = 64,
    vocab: int = 97,
    seed: int = 0,
) -> LlamaForCausalLM:
    """A Llama (eval, fp32) with the plant."""
    model = null_model(
        layers=layers, heads=heads, kv_heads=kv_heads, width=width, vocab=vocab, seed=seed, dimension=plant.dimension
    )
    with torch.no_grad():
        token = model.model.embed_tokens.weight[SINK_TOKEN]
        token *= plant.content
        write_mark(token, plant)
        write_plant([_block(layer) for layer in model.model.layers], plant)
    return model


def null_model(
    *,
    layers: int = 4,
    heads: int = 4,
    kv_heads: int = 2,
    width: int = 64,
    vocab: int = 97,
    seed: int = 0,
    dimension: int = F3.dimension,
) -> LlamaForCausalLM:
    """The same Llama with nothing planted: no sink, no massive activation, and SINK_TOKEN is a token like any other."""
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        mlp_bias=True,  # the thresholds of a planted step; zero elsewhere
    )
    with torch.random.fork_rng(devices=[]):
        model = LlamaForCausalLM(config).eval()
    free = Plant(dimension=dimension)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        write_ordinary_embedding(model.model.embed_tokens.weight, free, generator)
        for layer in model.model.layers:
            write_ordinary_block(_block(layer), free, generator)
        write_ordinary_reader(model.lm_head.weight, 1.0, free, generator)
    return model


def _block(layer: LlamaDecoderLayer) -> Block:
    attention, mlp = layer.self_attn, layer.mlp
    return Block(
        query=attention.q_proj.weight,
        key=attention.k_proj.weight,
        value=attention.v_proj.weight,
        output=attention.o_proj.weight,
        units=(mlp.gate_proj.weight, mlp.up_proj.weight),
        biases=(mlp.gate_proj.bias, mlp.up_proj.bias),
        down=mlp.down_proj.weight,
        head_dim=attention.head_dim,
    )
