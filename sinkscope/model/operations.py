"""The attention operations of a model's layers, as its configuration names them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from sinkscope.attention import AttentionSpec, Sizes, resolve
from sinkscope.errors import InputError
from sinkscope.model.visibility import bidirectional, causal


def per_layer(attention: object, layers: int) -> list[AttentionSpec]:
    """One operation for each layer: the one given, or those of a list, which begins anew where it ends.

    [local, local, full] of seven layers is local, local, full, local, local, full, local. Raises `InputError` for a
    list that is empty or longer than there are layers, and for what is no operation.
    """
    if not isinstance(attention, list | tuple):
        return [resolve(attention)] * layers
    if not 1 <= len(attention) <= layers:
        raise InputError(
            f"LabConfig.attention: a list of {len(attention)} operations for {layers} layers; give one for each layer, "
            "or fewer, which repeat"
        )
    pattern = [resolve(one) for one in attention]
    return [pattern[layer % len(pattern)] for layer in range(layers)]


def as_data(operations: Sequence[AttentionSpec]) -> dict[str, Any] | list[dict[str, Any]]:
    """Plain data to store: one dict where all layers have the same operation, else one for each layer."""
    first = operations[0]
    if all(operation == first for operation in operations):
        return first.to_dict()
    return [operation.to_dict() for operation in operations]


@cache
def check_builds(operation: AttentionSpec, sizes: Sizes) -> None:
    """Raises `InputError` for an operation that does not fit a layer of these sizes; allocates nothing."""
    with torch.device("meta"):
        operation.build(
            heads=sizes.heads, kv_heads=sizes.kv_heads, head_dim=sizes.head_dim, hidden_size=sizes.hidden_size
        )


def as_applied(operation: AttentionSpec, is_causal: bool) -> AttentionSpec:
    """The operation under the mask that it has in a causal or a bidirectional model (`visibility`)."""
    mask = causal(operation.mask) if is_causal else bidirectional(operation.mask)
    return operation if mask == operation.mask else replace(operation, mask=mask)
