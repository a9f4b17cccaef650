"""The same plant in two other families: one whose sink follows a learned position, and a bidirectional encoder."""

from __future__ import annotations

import torch
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel
from transformers.models.bert.modeling_bert import BertLayer
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

from tests.planted.plant import F3, ORDINARY, SINK_TOKEN, Plant
from tests.planted.weights import (
    Block,
    write_mark,
    write_ordinary_block,
    write_ordinary_embedding,
    write_ordinary_reader,
    write_plant,
)

ENCODER_PLANT = Plant(sinks=(12,), massive=False, onset=0)


def planted_gpt2(
    plant: Plant = F3, *, layers: int = 4, heads: int = 4, width: int = 64, vocab: int = 97, seed: int = 0
) -> GPT2LMHeadModel:
    """A GPT-2 (eval, fp32) whose sinks are made by the position embeddings of `plant.sinks`, whatever stands there.

    SINK_TOKEN is a token like any other. Raises ValueError for a plant without massive activation: an ordinary token's
    content would not be drained.
    """
    if not plant.massive:
        raise ValueError("a sink that follows the position needs a massive activation to drown the token's content")
    config = GPT2Config(
        vocab_size=vocab,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        n_inner=2 * width,
        n_positions=1024,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        model = GPT2LMHeadModel(config).eval()
    generator = torch.Generator().manual_seed(seed)
    blocks = [_gpt2_block(layer) for layer in model.transformer.h]
    with torch.no_grad():
        write_ordinary_embedding(model.transformer.wte.weight, plant, generator)
        _write_positions(model.transformer.wpe.weight, plant, generator)
        for position in plant.sinks:
            write_mark(model.transformer.wpe.weight[position], plant)
        for block in blocks:
            write_ordinary_block(block, plant, generator)
        write_plant(blocks, plant)
        write_ordinary_reader(model.lm_head.weight, 1.0, plant, generator)
    return model


def planted_encoder(
    plant: Plant = ENCODER_PLANT, *, layers: int = 4, heads: int = 4, width: int = 64, vocab: int = 97, seed: int = 0
) -> BertForMaskedLM:
    """A BERT (eval, fp32) in which every token attends to SINK_TOKEN, here a separator in the middle.

    Its norms stand on the residual stream itself, so no entry can exceed √width: the plant must be without massive
    activation and have its entry in the embedding (ValueError otherwise).
    """
    if plant.massive or plant.onset or plant.decay is not None:
        raise ValueError("the encoder takes a plant with massive=False, onset=0 and no decay")
    config = BertConfig(
        vocab_size=vocab,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=2 * width,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        model = BertForMaskedLM(config).eval()
    generator = torch.Generator().manual_seed(seed)
    embeddings, head = model.bert.embeddings, model.cls.predictions
    blocks = [_bert_block(layer) for layer in model.bert.encoder.layer]
    with torch.no_grad():
        write_ordinary_embedding(embeddings.word_embeddings.weight, plant, generator)
        _write_positions(embeddings.position_embeddings.weight, plant, generator)
        embeddings.token_type_embeddings.weight[:] = 0
        token = embeddings.word_embeddings.weight[SINK_TOKEN]
        token *= plant.content
        write_mark(token, plant)
        for block in blocks:
            write_ordinary_block(block, plant, generator)
        write_plant(blocks, plant)
        write_ordinary_reader(head.transform.dense.weight, 1.0, plant, generator)
        head.decoder.weight.normal_(0, width**-0.5, generator=generator)
    return model


def _write_positions(weight: torch.Tensor, plant: Plant, generator: torch.Generator) -> None:
    weight.normal_(0, ORDINARY / 10, generator=generator)
    weight[:, plant.reserved] = 0


def _gpt2_block(layer: GPT2Block) -> Block:
    query, key, value = layer.attn.c_attn.weight.T.chunk(3)
    return Block(
        query=query,
        key=key,
        value=value,
        output=layer.attn.c_proj.weight.T,
        units=(layer.mlp.c_fc.weight.T,),
        biases=(layer.mlp.c_fc.bias,),
        down=layer.mlp.c_proj.weight.T,
        head_dim=layer.attn.head_dim,
    )


def _bert_block(layer: BertLayer) -> Block:
    attention = layer.attention.self
    return Block(
        query=attention.query.weight,
        key=attention.key.weight,
        value=attention.value.weight,
        output=layer.attention.output.dense.weight,
        units=(layer.intermediate.dense.weight,),
        biases=(layer.intermediate.dense.bias,),
        down=layer.output.dense.weight,
        head_dim=attention.attention_head_size,
    )
