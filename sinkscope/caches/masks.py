"""Attention masks by the true place of each stored key."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from sinkscope.caches.layers.groups import Group, query_heads
from sinkscope.caches.layers.slots import KeptSets
from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks import family


def by_place(
    layer: KeptSets, module: nn.Module, implementation: str | None, arguments: dict[str, Any]
) -> dict[str, Any]:
    """The arguments of an attention function, with a mask that matches what the layer stores.

    transformers makes one mask for all layers, as if the stored keys were the newest ones. Its columns for this pass's
    own tokens are kept. A stored key is visible if its slot is filled, because all stored keys are older. A mask that
    is not a tensor belongs to a model that asks the cache for places itself.
    """
    mask = arguments.get("attention_mask")
    _check_bias(module, arguments)
    if layer.whole or not (mask is None or isinstance(mask, Tensor)):
        return arguments
    query, key = arguments["query"], arguments["key"]
    new, stored = query.shape[2], key.shape[2] - query.shape[2]
    # One query sees every slot. Flash attention aligns its causal mask with the last key, as needed for new tokens
    # after stored ones; sdpa's `is_causal` aligns it with the first.
    if mask is None and not layer.gaps and (new == 1 or (implementation or "").startswith("flash")):
        return arguments
    if mask is not None and mask.ndim != 4:
        raise unsupported(module, f"'{implementation}' accepts no mask by place: use sdpa or eager")
    if mask is None and implementation not in (None, "eager", "sdpa"):
        raise unsupported(module, f"'{implementation}' accepts no mask by place: use sdpa or eager")
    kept = layer.real[:, :, :stored]
    # Without gaps, heads differ in which keys they hold, not in which slots are filled: one mask serves all.
    if not layer.gaps:
        kept = kept[:, :1]
    # (batch, heads or 1, query, stored)
    kept = _of_queries(kept, query.shape[1])[:, :, None].expand(-1, -1, new, -1)
    new_columns = _triangle(new, key.device) if mask is None else mask[..., -new:]
    new_columns = new_columns.expand(kept.shape[0], max(kept.shape[1], new_columns.shape[1]), -1, -1)
    kept = kept.expand(-1, new_columns.shape[1], -1, -1)
    if new_columns.dtype == torch.bool and implementation in (None, "eager"):  # eager attention adds the mask
        new_columns = addends(new_columns, query.dtype)
    kept = kept if new_columns.dtype == torch.bool else addends(kept, new_columns.dtype)
    return arguments | {"attention_mask": torch.cat([kept, new_columns], -1)}


def seen_by_one(module: nn.Module, implementation: str | None, arguments: dict[str, Any]) -> dict[str, Any]:
    """The same for one query if every slot holds its own or an older key: it sees all of them."""
    _check_bias(module, arguments)
    mask = arguments.get("attention_mask")
    if not isinstance(mask, Tensor):
        return arguments
    if mask.ndim != 4:
        raise unsupported(module, f"'{implementation}' accepts no mask by place: use sdpa or eager")
    # Columns are not in the order of slots. The last is the query's own, hidden only in a row of padding.
    new_column = mask[..., -1:]
    if new_column.dtype == torch.bool and implementation in (None, "eager"):  # eager attention adds the mask
        new_column = addends(new_column, arguments["query"].dtype)
    return arguments | {"attention_mask": new_column.expand(*new_column.shape[:3], arguments["key"].shape[2])}


def is_bias(mask: Tensor | None) -> bool:
    """Whether a mask adds other numbers to scores than 0 and −∞."""
    if mask is None or not mask.is_floating_point():
        return False
    # Hidden keys have −inf or about the dtype's minimum, depending on what made the mask.
    return bool(((mask != 0) & (mask > torch.finfo(mask.dtype).min / 2)).any())


def is_plain(module: nn.Module, arguments: dict[str, Any]) -> bool:
    """Whether an attention call is a softmax of scaled products and nothing else, so that heads can be computed
    separately.
    """
    more = ("softcap", "s_aux", "sinks", "position_bias")
    key = arguments["key"]
    return (
        all(arguments.get(name) is None for name in more)
        and not arguments.get("dropout")
        and not arguments.get("output_attentions")
        and not hasattr(module, "operation")
        and arguments["query"].shape[1] % key.shape[1] == 0
    )


def of_group(
    group: Group, layer: KeptSets, implementation: str | None, arguments: dict[str, Any], of_each: int
) -> dict[str, Any]:
    """The arguments of an attention function for one group's heads and one query, with a mask if slots are empty.

    Args:
        group: Key-value heads with equally many slots.
        layer: The layer that they belong to.
        implementation: Name of the function; None is eager.
        arguments: Those for all heads, by name.
        of_each: Query heads per key-value head.
    """
    query = arguments["query"]
    changed = {
        "query": query[:, query_heads(group, of_each)],
        "key": group.slots["keys"],
        "value": group.slots["values"],
    }
    seen = layer.real_among(group.slots["places"])
    mask = _of_queries(seen, changed["query"].shape[1])[:, :, None] if group.gaps else None
    if mask is not None and implementation in (None, "eager"):
        mask = addends(mask, query.dtype)
    return arguments | changed | {"attention_mask": mask}


def unsupported(module: nn.Module, reason: str) -> UnsupportedModelError:
    """The error for an attention layer that cannot be evicted from."""
    return UnsupportedModelError(f"family '{family(module)}', {type(module).__name__}: {reason}")


def addends(visible: Bool[Tensor, "*shape"], dtype: torch.dtype) -> Tensor:
    """An additive mask: 0 where visible, the dtype's minimum elsewhere."""
    # Not −inf: the softmax of a row without visible keys would be NaN.
    return torch.zeros_like(visible, dtype=dtype).masked_fill_(~visible, torch.finfo(dtype).min)


def _check_bias(module: nn.Module, arguments: dict[str, Any]) -> None:
    if arguments.get("position_bias") is not None:
        raise unsupported(module, "adds a bias by column to its scores, which does not fit keys at other places")


def _of_queries(kept: Bool[Tensor, "batch kv_heads stored"], heads: int) -> Bool[Tensor, "batch heads stored"]:
    return kept if kept.shape[1] == 1 else kept.repeat_interleave(heads // kept.shape[1], 1)


def _triangle(new: int, device: torch.device) -> Bool[Tensor, "1 1 new new"]:
    return torch.ones(new, new, dtype=torch.bool, device=device).tril()[None, None]
