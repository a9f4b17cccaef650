"""The choices of a block as a configuration names them, and what is wrong with a configuration's own."""

from __future__ import annotations

from math import isfinite

import torch
from transformers import PreTrainedConfig

from sinkscope.attention import Document, Mask, Visibility
from sinkscope.attention.masks import leaves
from sinkscope.errors import InputError, unknown

CHOICES = {
    "norm": ("rmsnorm", "layernorm", "none"),
    "norm_placement": ("pre", "post", "sandwich", "outlier_protected"),
    "ffn": ("swiglu", "geglu", "reglu", "swish", "gelu", "relu", "linear", "none"),
    "head_combination": ("concat", "add"),
    "weight_reparam": ("none", "sigma"),
}
FLAGS = ("ffn_match_parameters", "restart_positions", "is_causal", "tie_word_embeddings", "use_cache")
LOOKED_AT = 16  # tokens; a mask that lets a query see later tokens does so within these
PROTECTED_GAIN = 0.2  # He et al. 2024's for twelve layers; of order 1 / sqrt(layers)

POSITIVE = {"residual_gain": PROTECTED_GAIN, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_fraction": 1.0}


def default_gain(norm_placement: str) -> float:
    """β of the residual branches where a configuration does not say: 0.2 in the outlier-protected block, else 1."""
    return PROTECTED_GAIN if norm_placement == "outlier_protected" else 1.0


def unlike_llama(config: PreTrainedConfig) -> str | None:
    """The first field by which a block of this configuration differs from a Llama's; None where none does."""
    same = {
        "norm": config.norm == "rmsnorm",
        "norm_placement": config.norm_placement == "pre",
        "residual_gain": config.residual_gain == 1,
        "ffn": config.ffn == "swiglu",
        "head_combination": config.head_combination == "concat" or config.num_attention_heads == 1,
        "weight_reparam": config.weight_reparam == "none",
        "attention_every": not config.is_hybrid,
        "kv_layers": not config.shares_kv,
    }
    return next((field for field, is_same in same.items() if not is_same), None)


def check_blocks(config: PreTrainedConfig) -> None:
    """Raises `InputError` for the first of the block's fields whose value has no meaning."""
    for field, choices in CHOICES.items():
        if (chosen := getattr(config, field)) not in choices:
            raise unknown(field, str(chosen), choices)
    for field in FLAGS:
        if not isinstance(given := getattr(config, field), bool):
            raise InputError(f"LabConfig.{field} = {given!r}: expected true or false")
    for field, usual in POSITIVE.items():
        given = getattr(config, field)
        if isinstance(given, bool) or not isinstance(given, int | float) or not (isfinite(given) and given > 0):
            raise InputError(f"LabConfig.{field} = {given!r}: expected a positive number, such as {usual}")
    _check_count("sink_tokens", config.sink_tokens, 0)
    _check_tokens(config)
    _check_hybrid(config)
    _check_sharing(config)


def _check_tokens(config: PreTrainedConfig) -> None:
    for field in ("bos_token_id", "eos_token_id", "pad_token_id"):
        given = getattr(config, field)
        several = given if isinstance(given, list) and field == "eos_token_id" else [given]
        for token in several:
            if token is not None and (type(token) is not int or not 0 <= token < config.vocab_size):
                raise InputError(
                    f"LabConfig.{field} = {given!r}: expected a token, 0 … {config.vocab_size - 1}, or nothing"
                )


def _check_count(field: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"LabConfig.{field} = {value!r}: expected an integer of at least {least}")


def _check_hybrid(config: PreTrainedConfig) -> None:
    every, offset = config.attention_every, config.attention_offset
    for field, least in (
        ("attention_every", 1),
        ("attention_offset", 0),
        ("mamba_d_state", 1),
        ("mamba_d_conv", 2),
        ("mamba_expand", 1),
    ):
        _check_count(field, getattr(config, field), least)
    if offset >= every:
        raise InputError(
            f"LabConfig.attention_offset = {offset}: one layer in {every} attends, so expected 0 … {every - 1}"
        )
    if not any(config.attends):
        raise InputError(
            f"LabConfig.attention_offset = {offset}: none of {config.num_hidden_layers} layers attends; "
            f"choose at most {config.num_hidden_layers - 1}"
        )
    documents = (isinstance(leaf, Document) for spec in config.specs for leaf in leaves(spec.mask))
    if config.is_hybrid and any(documents):
        raise InputError(
            "LabConfig.attention_every: a Mamba layer carries its state across the borders of documents, which "
            "contradicts the attention's document mask; use attention_every = 1 or another mask"
        )


def _check_sharing(config: PreTrainedConfig) -> None:
    for field, least in (("kv_iterations", 0), ("kv_gradient_iterations", 1)):
        _check_count(field, getattr(config, field), least)
    if config.kv_layers is None:
        return
    layers, given = config.num_hidden_layers, config.kv_layers
    if not isinstance(given, list) or len(given) != layers or any(type(one) is not int for one in given):
        raise InputError(f"LabConfig.kv_layers = {given!r}: expected {layers} layer numbers, one for each layer")
    if wrong := [one for one in given if not 0 <= one < layers]:
        raise InputError(f"LabConfig.kv_layers: there is no layer {wrong[0]}; choose from 0 … {layers - 1}")
    if not config.shares_kv:
        return
    if config.is_hybrid:
        raise InputError("LabConfig.kv_layers: a Mamba layer has no keys and values; use attention_every = 1")
    if any(spec.acts_before for spec in config.specs):
        raise InputError(
            f"LabConfig.kv_layers: '{config.attention_name}' changes queries, keys or values with what its own "
            "layer learns before they are cached, so no other layer can read them"
        )
    if any(supplier > layer for layer, supplier in enumerate(given)) and _looks_ahead(config):
        raise InputError(
            "LabConfig.kv_layers: a layer that reads from a later one needs a causal model; with this mask, or with "
            "is_causal = False, queries see later tokens"
        )


def _looks_ahead(config: PreTrainedConfig) -> bool:
    """Whether a layer's mask shows any of the first tokens to an earlier one."""
    documents = torch.zeros(1, LOOKED_AT, dtype=torch.long)

    def looks(mask: Mask) -> bool:
        visible = Visibility.of(mask, LOOKED_AT, LOOKED_AT, documents=documents).dense()
        return bool(visible.triu(1).any())

    return any(looks(spec.mask) for spec in config.specs)
