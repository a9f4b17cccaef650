"""Checks of parts of a recipe that are valid by themselves but do not fit each other."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sinkscope.attention import AttentionSpec, Document
from sinkscope.attention.masks import leaves
from sinkscope.data import DataConfig
from sinkscope.errors import InputError
from sinkscope.model import LabConfig
from sinkscope.model.visibility import longest_prefix
from sinkscope.training.loss import Loss


def check_fit(config: LabConfig, operations: Sequence[AttentionSpec], loss: Loss, data: DataConfig) -> None:
    """Raises `InputError` for the first two parts of a recipe that contradict each other, before data are read.

    `operations` are the recipe's as written; `config` has them with the masks of data and loss.
    """
    context = config.max_position_embeddings
    _check_targets(config, operations, loss)
    _check_documents(config, operations, data)
    if loss.activation_penalty is not None:
        loss.activation_penalty.at(config.num_hidden_layers)
    for intervention in data.interventions:
        if intervention.stop > context:
            raise InputError(
                f"data.interventions: {intervention.kind} at position {intervention.stop - 1} lies outside a context "
                f"of {context}"
            )


def check_sizes(config: LabConfig) -> None:
    """Raises `InputError` for an operation that does not fit the model's sizes, before a run is written."""
    with torch.device("meta"):
        for layer, spec in enumerate(config.specs):
            spec.build(
                heads=config.num_attention_heads,
                kv_heads=config.kv_heads,
                head_dim=config.head_dim,
                hidden_size=config.hidden_size,
                layer=layer,
            )


def _check_targets(config: LabConfig, operations: Sequence[AttentionSpec], loss: Loss) -> None:
    """No position may see the token that it is scored on: the model would learn to copy it."""
    if loss.prefix >= (context := config.max_position_embeddings):
        raise InputError(f"loss.prefix = {loss.prefix} leaves nothing to predict in a context of {context}")
    if config.is_causal and loss.masked is not None:
        raise InputError(
            "loss.masked predicts tokens from both sides, and a causal model sees one: set model.is_causal=false, or "
            "leave loss.masked out"
        )
    if not config.is_causal and loss.masked is None:
        raise InputError(
            "model.is_causal = false: every token sees the next one, so the next-token loss would only teach it to "
            "copy; set loss.masked.share=0.15 to train it on masked tokens"
        )
    if loss.prefix and not config.is_causal:
        raise InputError(
            f"loss.prefix = {loss.prefix}: in a bidirectional model (model.is_causal = false) every token sees all"
        )
    shown = max(longest_prefix(spec.mask) for spec in operations)
    # A prefix of one token shows nothing that causality would hide.
    if config.is_causal and shown > max(1, loss.prefix):
        raise InputError(
            f"attention.mask shows the first {shown} tokens to each other, and the loss would predict them: set "
            f"loss.prefix={shown}"
        )


def _check_documents(config: LabConfig, operations: Sequence[AttentionSpec], data: DataConfig) -> None:
    """A document mask and restarting positions need windows that number their documents, and attention layers."""
    by_document = any(isinstance(leaf, Document) for spec in operations for leaf in leaves(spec.mask))
    if by_document and data.packing == "causal" and not config.restart_positions:
        raise InputError(
            "attention.mask separates documents, and windows with data.packing = causal do not number theirs: set "
            "data.packing=intra_document, which needs no document mask"
        )
    if config.is_hybrid and config.restart_positions:
        raise InputError(
            f"model.restart_positions: a Mamba layer (model.attention_every = {config.attention_every}) has no "
            "positions to restart; its state runs on"
        )
