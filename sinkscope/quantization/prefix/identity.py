"""The model and the tokenizer that a prefix belongs to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import Stream, family, is_encoder_decoder, text_config

ROWS = 4096  # rows of the embedding table that are hashed
SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")


def fingerprint(model: nn.Module) -> dict[str, Any]:
    """Family, sizes, and a hash of token embeddings in bfloat16, which quantizing or casting does not change."""
    if not isinstance(model, PreTrainedModel):
        raise UnsupportedModelError(f"a prefix belongs to a transformers model, not to a {type(model).__name__}")
    config, table = text_config(model), model.get_input_embeddings().weight
    rows = torch.linspace(0, len(table) - 1, min(ROWS, len(table)), device=table.device).long()
    drawn = table.detach()[rows].to(torch.bfloat16).float().cpu().contiguous()
    return {
        "family": family(model),
        **{name: value for name in SIZES if isinstance(value := getattr(config, name, None), int)},
        "embeddings_sha256": hashlib.sha256(drawn.numpy().tobytes()).hexdigest(),
    }


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """A hash of a tokenizer's vocabulary."""
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda pair: (pair[1], pair[0]))
    return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()


def check_same(here: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raises `InputError` with the first difference between this model and the one that a prefix was made with."""
    for name in wanted:
        if here.get(name) != wanted[name]:
            what = "its token embeddings differ"
            if name != "embeddings_sha256":
                what = f"{name} is {here.get(name)!r} here, and {wanted[name]!r} there"
            raise InputError(f"this prefix was made with another model: {what}; find one for this model")


def check_decoder(model: nn.Module) -> None:
    """Raises `UnsupportedModelError` for a model that does not read tokens from left to right."""
    if is_encoder_decoder(model) or Stream.of(model).stack != "decoder":
        raise UnsupportedModelError(
            f"family '{family(model)}': a prefix lives in the cache of a causal language model, which this is not"
        )


def bos_of(model: nn.Module) -> int | None:
    """The token that begins a text, according to the configurations."""
    for config in (text_config(model), getattr(model, "generation_config", None)):
        token = getattr(config, "bos_token_id", None)
        if isinstance(token, int) and not isinstance(token, bool):
            return token
    return None


def room_of(model: nn.Module) -> int | None:
    """The number of positions of a model; None if its configuration does not state it."""
    limit = getattr(text_config(model), "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None
