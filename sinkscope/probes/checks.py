"""Whether a model can be measured on given inputs, before it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sinkscope.errors import InputError

IDS = ("input_ids", "decoder_input_ids")


def check_weights(model: nn.Module) -> None:
    """Raises `InputError` naming the first parameter that holds a NaN or an infinity."""
    for name, parameter in model.named_parameters():
        if parameter.is_meta or not parameter.is_floating_point():
            continue
        weight = parameter.detach()
        # The sum is finite unless an entry is not (or it overflows), and needs no copy of the weights.
        if not bool(torch.isfinite(weight.sum())) and not bool(torch.isfinite(weight).all()):
            raise InputError(f"NaN or infinity in the weights, first in '{name}'")


def check_ids(model: nn.Module, given: Mapping[str, Any]) -> None:
    """Raises `InputError` for the first token id outside the vocabulary."""
    for name in IDS:
        ids = given.get(name)
        if not isinstance(ids, Tensor):
            continue
        if ids.is_floating_point() or ids.dtype == torch.bool or ids.ndim != 2:
            raise InputError(f"{name} {tuple(ids.shape)} {ids.dtype}: token ids are whole numbers (samples, tokens)")
        size = _vocabulary(model)
        outside = (ids < 0) if size is None else (ids < 0) | (ids >= size)
        if bool(outside.any()):
            sample, position = outside.nonzero()[0].tolist()
            raise InputError(
                f"token id {int(ids[sample, position])} (sample {sample}, position {position}) is outside the "
                f"vocabulary{'' if size is None else f' of {size} tokens'}"
            )


def _vocabulary(model: nn.Module) -> int | None:
    """Rows of the token embedding; None for a model that does not say which one that is."""
    if not isinstance(model, PreTrainedModel):
        return None
    try:
        embedding = model.get_input_embeddings()
    except NotImplementedError:
        return None
    return embedding.num_embeddings if isinstance(embedding, nn.Embedding) else None


def check_positions(model: nn.Module, given: Mapping[str, Any]) -> None:
    """Raises `InputError` where a row has more tokens than the model has positions."""
    text = model.config.get_text_config() if isinstance(model, PreTrainedModel) else None
    limit = getattr(text, "max_position_embeddings", None)
    for name in (*IDS, "inputs_embeds"):
        value = given.get(name)
        if isinstance(limit, int) and isinstance(value, Tensor) and value.shape[1] > limit > 0:
            raise InputError(f"{value.shape[1]} tokens, but the model has positions for {limit}: use at most {limit}")
