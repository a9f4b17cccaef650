"""Bytes of caches: as measured, as predicted after a context of a given length, and how many keys a share of them
allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from sinkscope.caches.budgets import Budget, budget_of
from sinkscope.caches.engines import ServedCache
from sinkscope.caches.evictor import When
from sinkscope.caches.layers.sink_window import rows_of
from sinkscope.caches.notes import Heads, KeyNote, RowNote
from sinkscope.caches.policies import Policy, policy_of
from sinkscope.caches.streaming import Renumbered
from sinkscope.caches.turning import ahead_of
from sinkscope.errors import InputError
from sinkscope.hooks import text_config


class Uncounted:
    """Base class of what a cache keeps for speed alone, which `held_bytes` leaves out."""


def held_bytes(cache: Cache, widest: int | None = None) -> int:
    """Bytes of all storages behind a cache's tensors, each counted once.

    A view counts with everything that it keeps alive: `nbytes` of a window's view is 1 MiB even if the whole prompt of
    32 MiB is still in memory. Quantized tensors count with their parts. Everything reachable from the cache counts,
    except modules, since the model does not belong to the cache, and `Uncounted`.

    `widest`: bytes of a floating-point number at most, whatever is held: 2 for the cache of a model in 16 bits.
    """
    storages = {}
    for tensor in _tensors(cache, set()):
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        if widest is not None and tensor.is_floating_point() and tensor.itemsize > widest:
            size = size * widest // tensor.itemsize
        storages[storage.data_ptr(), str(tensor.device)] = size
    return sum(storages.values())


def _tensors(value: Any, visited: set[int]) -> Iterator[Tensor]:
    """The plain tensors within a value; a tensor subclass is replaced by the tensors that it consists of."""
    if id(value) in visited or isinstance(value, nn.Module | Uncounted | type | str | bytes):
        return
    visited.add(id(value))
    if isinstance(value, Tensor):
        if (parts := getattr(value, "__tensor_flatten__", None)) is None:
            yield value
        else:
            yield from _within((getattr(value, name) for name in parts()[0]), visited)
    else:
        yield from _within(_members(value), visited)


def _members(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, list | tuple | set | frozenset):
        return value
    if is_dataclass(value):
        return [getattr(value, each.name) for each in fields(value) if hasattr(value, each.name)]
    return vars(value).values() if hasattr(value, "__dict__") and not callable(value) else ()


def _within(values: Iterable[Any], visited: set[int]) -> Iterator[Tensor]:
    for value in values:
        yield from _tensors(value, visited)


Stream = Renumbered | ServedCache
FULL = ("full_attention", "hybrid")  # kinds of layers that keep keys of all tokens; hybrid ones have states too
NUMBER = 8  # bytes of a place or of a limit


@dataclass(frozen=True)
class Held:
    """Bytes that the evicting layers hold after one text of `tokens`.

    `keys`: stored keys and values with their places and spare slots. `notes`: what the policy keeps in addition.
    `whole`: what a `DynamicCache` holds in these layers.
    """

    tokens: int
    keys: int
    notes: int
    whole: int

    @property
    def total(self) -> int:
        return self.keys + self.notes

    @property
    def share(self) -> float:
        """As a share of the whole."""
        return self.total / self.whole


def held(
    policy: Policy | Stream | str,
    model: nn.Module | Any,
    keys: Budget | int | float,
    tokens: int,
    when: When = "prefill",
    *,
    number: int | None = None,
) -> Held:
    """Bytes that a policy holds after a context of `tokens`, read in one pass.

    If heads keep different numbers of keys (`AdaptiveHeads`), their mean is counted; the rectangles in use, as wide as
    the longest head, hold more.

    Args:
        policy: A policy, a `Renumbered` stream, how an engine caches, or the name of a policy.
        model: A model, or its configuration.
        keys: The budget.
        tokens: Length of the context.
        when: As in `evicting`.
        number: Bytes of one number; by default those of the model's dtype.
    """
    config, heads = _heads(model, number)
    layers = _full_layers(config)
    whole = layers * 2 * heads.kv * heads.dim * heads.number * tokens
    policy = _named(policy)
    row = heads.kv * 2 * heads.dim * heads.number
    if isinstance(policy, ServedCache):
        return Held(tokens, layers * _number(keys, tokens) * row, NUMBER * layers * tokens, whole)
    if isinstance(policy, Renumbered):
        window = _number(keys, tokens) - policy.sinks
        if window < 1:
            raise InputError(f"{policy.sinks} sinks leave no window of {_number(keys, tokens)} keys")
        ahead = ahead_of(policy.sinks, window) * policy.sinks * row // 2  # keys: values are not turned
        rows = min(tokens, rows_of(policy.sinks, window)) + policy.sinks
        return Held(tokens, layers * rows * row, layers * ahead if tokens >= policy.sinks + window else 0, whole)
    budget = policy.spread(budget_of(keys)).around(policy.least - 1)
    lasting = [note for note in policy.needs if when == "always" or not note.one_pass]
    note_row = heads.kv * sum(note.bytes_each(heads) for note in lasting if isinstance(note, KeyNote))
    fixed = sum(note.bytes_held(heads, tokens) for note in lasting if isinstance(note, RowNote))
    stored = noted = 0
    for layer in range(layers):
        limit = int(budget.of_layer(layer, layers, torch.tensor([tokens]))[0])
        dropping = layer >= policy.skipped and limit < tokens
        # One slot more than is kept (`KeptSets.evict`).
        rows = limit + 1 if dropping else tokens
        # Until something is dropped, places are one row for all heads (`KeptSets.update`).
        stored += rows * row + NUMBER * (rows * heads.kv if dropping else tokens)
        stored += NUMBER * (heads.kv + 1) if layer >= policy.skipped else 0
        noted += rows * note_row + fixed
    return Held(tokens, stored, noted, whole)


def keys_within(
    share: float,
    policy: Policy | Stream | str,
    model: nn.Module | Any,
    tokens: int,
    when: When = "prefill",
    *,
    fitting: Callable[[int], Policy] | None = None,
    number: int | None = None,
) -> int:
    """The largest number of keys per head with which a policy holds at most a `share` of the bytes of all keys.

    Args:
        share: Of the bytes that a `DynamicCache` holds in the evicting layers, above 0 and at most 1.
        policy: As in `held`.
        model: A model, or its configuration.
        tokens: Length of the context.
        when: As in `evicting`.
        fitting: The policy for a given number of keys, if it depends on that number.
        number: Bytes of one number; by default those of the model's dtype.

    Raises `InputError` if the notes alone, or the fewest keys that the policy can keep, exceed the share.
    """
    if not 0 < share <= 1:
        raise InputError(f"share = {share!r}: above 0 and at most 1")
    named = _named(policy)

    def used(keys: int) -> Policy | Stream:
        return named if fitting is None else fitting(keys)

    def of(keys: int) -> Held:
        return held(used(keys), model, keys, tokens, when, number=number)

    low = next((keys for keys in range(1, tokens + 1) if keys >= used(keys).least), None)
    if low is None:
        raise InputError(f"{type(named).__name__} needs {used(tokens).least} keys, more than the {tokens} tokens")
    least, name = of(low), type(used(low)).__name__
    if least.total > share * least.whole:
        what, size = (
            ("its notes alone", least.notes) if least.notes > share * least.whole else (f"{low} keys", least.total)
        )
        raise InputError(
            f"{name}: at {tokens} tokens {what} hold {100 * size / least.whole:.0f} % of the bytes of all keys, more "
            f"than {100 * share:g} %: give longer texts or a larger budget"
        )
    high = tokens
    while low < high:  # bisection: bytes grow with the number of keys
        middle = (low + high + 1) // 2
        low, high = (middle, high) if of(middle).total <= share * least.whole else (low, middle - 1)
    return low


def _named(policy: Policy | Stream | str) -> Policy | Stream:
    if isinstance(policy, Renumbered | ServedCache):
        return policy
    return Renumbered() if policy == Renumbered.name else policy_of(policy)


def _number(keys: Budget | int | float, tokens: int) -> int:
    return int(budget_of(keys).of_layer(0, 1, torch.tensor([tokens]))[0])


def _heads(model: Any, number: int | None) -> tuple[Any, Heads]:
    config = text_config(model) if isinstance(model, nn.Module) else model
    query = config.num_attention_heads
    kv = getattr(config, "num_key_value_heads", None) or query
    dim = getattr(config, "head_dim", None) or config.hidden_size // query
    if number is None:
        dtype = next(model.parameters()).dtype if isinstance(model, nn.Module) else torch.float32
        number = dtype.itemsize
    return config, Heads(query, kv, dim, number)


def _full_layers(config: Any) -> int:
    kinds = getattr(config, "layer_types", None)
    return sum(kind in FULL for kind in kinds) if kinds else int(config.num_hidden_layers)
