"""Attention over the keys that a cache kept, read as attention over all tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import Cache

from sinkscope.attention import Kept, held_columns
from sinkscope.errors import UnsupportedModelError


def with_dropped_keys(
    given: Mapping[str, Any],
    cache: Cache | None,
    layer: int,
    total: int,
    refuse: Callable[[str], UnsupportedModelError],
) -> dict[str, Any]:
    """The arguments of an attention function, its kept keys back among all `total` columns, the others masked.

    A cache layer that drops keys says in `places` (batch, 1 or kv_heads, kept) which column each key it handed out
    is. Memory is O(total) while a call is read. Raises where keys were handed out more than once, each turned for
    another query.
    """
    layers = getattr(cache, "layers", [])  # an encoder-decoder's cache has two caches instead, which drop nothing
    places = getattr(layers[layer], "places", None) if 0 <= layer < len(layers) else None
    if places is None or given["key"].shape[2] == total == places.shape[-1]:
        return dict(given)
    if places.shape[-1] != given["key"].shape[2]:
        raise refuse(f"attends to {given['key'].shape[2]} keys, of which its cache tells {places.shape[-1]}")
    places = places.to(given["key"].device)
    mask = given.get("attention_mask")
    if isinstance(mask, Tensor) and mask.ndim != 4:
        raise refuse("its cache dropped keys, and its mask does not say which it means: use attn_implementation='sdpa'")
    held = held_columns(places, total)
    if given["query"].shape[2] > 1 and int(held.sum()) != int((places >= 0).sum()):
        raise refuse("its cache hands out a key once for every query of a chunk: observe one token at a time")
    return {
        **given,
        "key": _spread(given["key"], places, total),
        "value": _spread(given["value"], places, total),
        "attention_mask": _mask(mask, given["query"], places, total),
    }


def _spread(kept: Float[Tensor, "batch heads kept dim"], places: Int[Tensor, "batch _ kept"], total: int) -> Tensor:
    """Kept keys or values at their columns, 0 elsewhere."""
    # One column more takes what stands nowhere.
    index = places.where(places >= 0, total)[..., None].expand_as(kept)
    return kept.new_zeros(*kept.shape[:2], total + 1, kept.shape[-1]).scatter_(2, index, kept.detach())[:, :, :total]


def _mask(mask: Any, query: Tensor, places: Int[Tensor, "batch _ kept"], total: int) -> Any:
    """The mask over all columns: a `Kept` one stays a mask value, every other is written out."""
    if isinstance(mask, Kept):
        return mask.spread()
    heads = places if places.shape[1] == 1 else places.repeat_interleave(query.shape[1] // places.shape[1], 1)
    if mask is None:
        return held_columns(heads, total)[:, :, None].expand(-1, -1, query.shape[2], -1)
    wide = max(mask.shape[1], heads.shape[1])
    shape = len(query), wide, mask.shape[2], heads.shape[-1]
    shown = mask[..., : shape[-1]].expand(shape)
    index = heads.where(heads >= 0, total)[:, :, None].expand(shape)
    nowhere = False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
    return mask.new_full((*shape[:3], total + 1), nowhere).scatter_(-1, index, shown)[..., :total]
