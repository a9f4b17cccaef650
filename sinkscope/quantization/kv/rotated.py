"""Attention over rotated keys and values: the query is rotated as they are, and the output is rotated back.

(H q)·(H k) = q·k and H Σ a (H v) = Σ a v, so one vector per query is multiplied instead of every cached key and value,
as llama.cpp and vLLM do.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from sinkscope.attention import operation_of
from sinkscope.grids import Blocks
from sinkscope.hooks import (
    Editor,
    arguments,
    attention_layers,
    device_of,
    dispatches,
    editing,
    evaluating,
    given_cache,
    kept_logits,
    own_attention,
    text_config,
    unobserved,
    with_cache,
)

Turns = Callable[[int, int, int], tuple[Blocks | None, Blocks | None]]
"""The rotations of keys and values of a layer, by its index and by the widths of queries and outputs."""

_known: weakref.WeakKeyDictionary[nn.Module, frozenset[int]] = weakref.WeakKeyDictionary()


def plain_readers(model: nn.Module) -> frozenset[int]:
    """The indices of the layers whose attention takes keys and values exactly as the cache returns them.

    Found in a pass over two tokens, once for a model. None in lab and attached models, whose operations may add keys or
    map them, and where attention does not dispatch to transformers' functions.
    """
    if own_attention(model) or any(operation_of(each) is not None for each in attention_layers(model)):
        return frozenset()  # before what is known: operations come and go
    if model not in _known:
        _known[model] = _compare_layers(model)
    return _known[model]


class _RecordedCache(DynamicCache):
    """Remembers what it returns."""

    def __init__(self, config: Any) -> None:
        super().__init__(config=config)
        self.returned: dict[int, tuple[Tensor, Tensor]] = {}

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        self.returned[layer_idx] = out = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        return out


class _Comparing(Editor):
    def __init__(self, cache: _RecordedCache, modules: Collection[nn.Module]) -> None:
        self.cache, self.modules = cache, modules
        self.same: set[int] = set()

    def edits(self, module: nn.Module) -> bool:
        return module in self.modules

    def given(self, module: nn.Module, implementation: str | None, arguments: dict[str, Any]) -> dict[str, Any]:
        index = getattr(module, "layer_idx", None)
        keys, values = self.cache.returned.get(index, (None, None))  # type: ignore[arg-type]
        # By identity: a family that unfolds a latent, or changes keys in another way, passes on other tensors.
        if index is not None and arguments["key"] is keys and arguments["value"] is values:
            self.same.add(index)
        return arguments


def _compare_layers(model: nn.Module) -> frozenset[int]:
    twin = unobserved(model)
    modules = [each for each in attention_layers(twin) if dispatches(each)]
    cache = _RecordedCache(text_config(model))
    comparing = _Comparing(cache, modules)
    ids = torch.ones(1, 2, dtype=torch.long, device=device_of(model))
    inputs = {"input_ids": ids, "use_cache": True} | with_cache(model, cache)
    inputs |= kept_logits(model)
    with evaluating(twin), torch.no_grad(), editing(comparing):
        twin(**inputs)
    return frozenset(comparing.same)


class _Turning(Editor):
    """Rotates queries, and outputs back. `cache`: whose layers say how, by `turns`."""

    def __init__(self, modules: Collection[nn.Module], turns: Turns) -> None:
        self.modules, self.turns = modules, turns
        self._widths: dict[nn.Module, tuple[int, int]] = {}

    def edits(self, module: nn.Module) -> bool:
        return module in self.modules

    def given(self, module: nn.Module, implementation: str | None, arguments: dict[str, Any]) -> dict[str, Any]:
        query = arguments["query"]
        widths = self._widths[module] = query.shape[-1], arguments["value"].shape[-1]
        turn, _ = self.turns(module.layer_idx, *widths)  # type: ignore[arg-type]
        return arguments if turn is None else arguments | {"query": _turned(query, turn)}

    def returned(self, module: nn.Module, output: Tensor) -> Tensor:
        _, turn = self.turns(module.layer_idx, *self._widths[module])  # type: ignore[arg-type]
        return output if turn is None else _turned(output, turn)


def _turned(x: Tensor, turn: Blocks) -> Tensor:
    return turn(x.float()).to(x.dtype)


def turn_attention(model: nn.Module, cache: Any, turns: Turns) -> None:
    """Rotate queries and outputs in every pass of `model` that gets `cache`, for as long as the cache lives.

    `turns` must hold no strong reference to the cache.
    """
    reference, open_passes = weakref.ref(cache), [ExitStack()]
    modules = weakref.WeakSet(attention_layers(model))
    turning = _Turning(modules, turns)

    def is_own(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        living = reference()
        return living is not None and given_cache(arguments(model, args, kwargs)) is living

    def before(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if is_own(model, args, kwargs):
            open_passes[0].close()  # in case an earlier pass broke off
            open_passes[0].enter_context(editing(turning))

    def after(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if is_own(model, args, kwargs):
            open_passes[0].close()

    for hook in (
        model.register_forward_pre_hook(before, with_kwargs=True),
        model.register_forward_hook(after, with_kwargs=True, always_call=True),
    ):
        weakref.finalize(cache, hook.remove)
