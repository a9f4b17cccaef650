"""Read several tokens at once as if they came one by one: each query sees its own copy of the sinks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from transformers import Cache

from sinkscope.caches.following import KEYLESS, Coming, FollowingCache
from sinkscope.errors import InputError, UnsupportedModelError
from sinkscope.hooks import (
    Editor,
    attention_layers,
    editing,
    family,
    has_attention,
    reads_at_once,
    text_config,
)

OWN_MASKS = ("doge",)  # attention makes a mask from the cached keys
HOSTS = ("eager", "sdpa")  # attention functions that accept any mask


@runtime_checkable
class StrictCache(Protocol):
    """Provides the mask of the layer whose attention comes next; None if transformers' mask is correct."""

    def awaited(self) -> Bool[Tensor, "batch 1 query stored"] | None: ...


class StrictMasks(Editor):
    """Replaces the masks of passes that are read strictly."""

    def __init__(self, model: nn.Module, cache: StrictCache) -> None:
        self._modules = set(attention_layers(model))
        self._cache = cache

    def edits(self, module: nn.Module) -> bool:
        return module in self._modules

    def given(self, module: nn.Module, implementation: str | None, arguments: dict[str, Any]) -> dict[str, Any]:
        mask = self._cache.awaited()
        if mask is None:
            return arguments
        query, keys = arguments["query"], arguments["key"].shape[2]
        if mask.shape[2:] != (query.shape[2], keys):
            raise UnsupportedModelError(
                f"attention sees {keys} keys, but its cache gave it {mask.shape[3]}: read one token at a time"
            )
        # Eager attention adds its mask; sdpa takes booleans.
        if implementation != "sdpa":
            mask = torch.zeros(mask.shape, dtype=query.dtype, device=query.device).masked_fill_(
                ~mask, torch.finfo(query.dtype).min
            )
        return arguments | {"attention_mask": mask}


class StrictReading(FollowingCache):
    """A cache that reads several tokens in a pass as if they came one by one, inside `strictly`."""

    strict = False
    _awaited: Tensor | None = None
    _attended = True

    def mask_of(self, layer_idx: int, device: torch.device) -> Bool[Tensor, "batch 1 query stored"] | None:
        """What each query of this pass sees in a layer; None if transformers' own mask is correct."""
        raise NotImplementedError

    @contextmanager
    def strictly(self, model: nn.Module) -> Iterator[None]:
        """Inside, each query of a pass sees what it would see alone."""
        self.strict = True
        try:
            with masked(model, self):
                yield
            # The last layer has no later `update` that would check it.
            self._check_attended()
        finally:
            self.strict = False

    def expect(self, coming: Coming) -> None:
        super().expect(coming)
        self._awaited, self._attended = None, True

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        if self.strict:
            # The layer before must have fetched its mask by now; if not, it attended under transformers' own.
            self._check_attended()
            self._awaited = self.mask_of(layer_idx, key_states.device)
            self._attended = self._awaited is None
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    def awaited(self) -> Tensor | None:
        """The mask for the layer updated last; None if transformers' own is correct."""
        self._attended = True
        return self._awaited

    def _check_attended(self) -> None:
        if not self._attended:
            raise UnsupportedModelError(
                "attention of a layer did not go through transformers' interface: read one token at a time"
            )


def at_once(model: nn.Module, cache: Cache) -> bool:
    """Whether several tokens can be read at once as if they came one by one.

    They cannot if recurrent states restart in a pass of several tokens (found by trying, not from a list), if layers
    share keys, or if attention is not computed by one of transformers' attention functions that take a mask.
    """
    if any(isinstance(layer, KEYLESS) for layer in cache.layers) or not reads_at_once(model, cache):
        return False
    if getattr(text_config(model), "num_kv_shared_layers", 0):
        return False
    host = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if host not in HOSTS or family(model) in OWN_MASKS or not has_attention(model):
        return False
    return not any(hasattr(module, "operation") for module in attention_layers(model))  # they make masks


def parts(seen: int, ids: Int[Tensor, "batch position"], chunk: int, mask: Tensor | None) -> Iterator[dict[str, Any]]:
    """The inputs of successive passes. Raises `InputError` for arguments that do not fit together."""
    if not isinstance(ids, Tensor) or ids.ndim != 2:
        raise InputError("ids: a tensor of token ids, (batch, position)")
    if not isinstance(chunk, int) or chunk < 1:
        raise InputError(f"chunk = {chunk!r}: at least 1 token")
    if mask is not None and tuple(mask.shape) != (len(ids), seen + ids.shape[1]):
        raise InputError(
            f"attention_mask {tuple(mask.shape)}: expected (batch, position) over earlier tokens and ids, "
            f"{(len(ids), seen + ids.shape[1])}"
        )
    for start in range(0, ids.shape[1], chunk):
        stop = min(start + chunk, ids.shape[1])
        inputs: dict[str, Any] = {"input_ids": ids[:, start:stop]}
        yield inputs if mask is None else inputs | {"attention_mask": mask[:, : seen + stop]}


def masked(model: nn.Module, cache: StrictCache) -> Any:
    """A context in which masks are replaced."""
    return editing(StrictMasks(model, cache))
