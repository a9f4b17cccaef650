"""The mask of an attention call by the true place of each stored key."""

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
    """The arguments of an attention function with a mask that fits to what the layer stores.

    transformers makes one mask for all layers, as if stored keys were the newest ones. Of it, the columns of this
    pass's own tokens stay; whether a stored key is seen is a matter of whether its slot is filled, as all of them are
    older. Masks of another kind than tensors are those of models that ask the cache for places themselves.
    """
    mask = arguments.get("attention_mask")
    _check_bias(module, arguments)
    if layer.whole or not (mask is None or isinstance(mask, Tensor)):
        return arguments
    query, key = arguments["query"], arguments["key"]
    new, stored = query.shape[2], key.shape[2] - query.shape[2]
    if mask is None and not layer.gaps and (new == 1 or (implementation or "").startswith("flash")):
        return arguments
    if mask is not None and mask.ndim != 4:
        raise _refuse(module, f"no mask by place can be given to '{implementation}': use sdpa or eager")
    if mask is None and implementation not in (None, "eager", "sdpa"):
        raise _refuse(module, f"no mask by place can be given to '{implementation}': use sdpa or eager")
    kept = layer.real[:, :, :stored]
    if not layer.gaps:
        kept = kept[:, :1]
    kept = _of_queries(kept, query.shape[1])[:, :, None].expand(-1, -1, new, -1)
    own = _triangle(new, key.device) if mask is None else mask[..., -new:]
    own = own.expand(kept.shape[0], max(kept.shape[1], own.shape[1]), -1, -1)
    kept = kept.expand(-1, own.shape[1], -1, -1)
    if own.dtype == torch.bool and implementation in (None, "eager"):  # which adds what it is given
        own = addends(own, query.dtype)
    kept = kept if own.dtype == torch.bool else addends(kept, own.dtype)
    return arguments | {"attention_mask": torch.cat([kept, own], -1)}


def seen_by_one(module: nn.Module, implementation: str | None, arguments: dict[str, Any]) -> dict[str, Any]:
    """The same for one query, where every slot holds a key that is older or its own: it sees all of them."""
    _check_bias(module, arguments)
    mask = arguments.get("attention_mask")
    if not isinstance(mask, Tensor):
        return arguments
    if mask.ndim != 4:
        raise _refuse(module, f"no mask by place can be given to '{implementation}': use sdpa or eager")
    own = mask[..., -1:]
    if own.dtype == torch.bool and implementation in (None, "eager"):  # which adds what it is given
        own = addends(own, arguments["query"].dtype)
    return arguments | {"attention_mask": own.expand(*own.shape[:3], arguments["key"].shape[2])}


def is_bias(mask: Tensor | None) -> bool:
    """Whether a mask adds numbers to scores: it then says more than who sees whom."""
    if mask is None or not mask.is_floating_point():
        return False
    return bool(((mask != 0) & (mask > torch.finfo(mask.dtype).min / 2)).any())


def is_plain(module: nn.Module, arguments: dict[str, Any]) -> bool:
    """Whether an attention call is a softmax of scaled products and nothing more, so that heads may be taken apart."""
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
    """The arguments of an attention function for a group's heads and one query, with a mask where slots are empty."""
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


def addends(visible: Bool[Tensor, "*shape"], dtype: torch.dtype) -> Tensor:
    """0 for what is seen, the lowest number for the rest."""
    return torch.zeros_like(visible, dtype=dtype).masked_fill_(~visible, torch.finfo(dtype).min)


def _check_bias(module: nn.Module, arguments: dict[str, Any]) -> None:
    if arguments.get("position_bias") is not None:
        raise _refuse(module, "adds a bias by column to its scores, which says nothing of keys that stand elsewhere")


def _of_queries(kept: Bool[Tensor, "batch kv_heads stored"], heads: int) -> Bool[Tensor, "batch heads stored"]:
    return kept if kept.shape[1] == 1 else kept.repeat_interleave(heads // kept.shape[1], 1)


def _triangle(new: int, device: torch.device) -> Bool[Tensor, "1 1 new new"]:
    return torch.ones(new, new, dtype=torch.bool, device=device).tril()[None, None]


def _refuse(module: nn.Module, reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"family '{family(module)}', {type(module).__name__}: {reason}")
