"""What a cache really holds: bytes of distinct storages, of which a tensor may show only a part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor, nn
from transformers import Cache


def held_bytes(cache: Cache) -> int:
    """Bytes of all storages that tensors of a cache stand on, each counted once.

    A view counts with everything it keeps alive: `nbytes` of a window's view says 1 MiB where the whole prompt of 32
    MiB is still held. Quantized tensors count with their parts. Whatever can be reached from the cache counts, modules
    excepted: the model is not the cache's.
    """
    storages = {}
    for tensor in _tensors(cache, set()):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr(), str(tensor.device)] = storage.nbytes()
    return sum(storages.values())


def _tensors(value: Any, met: set[int]) -> Iterator[Tensor]:
    """The plain tensors within a value, those that a tensor subclass is made of in its place."""
    if id(value) in met or isinstance(value, nn.Module | type | str | bytes):
        return
    met.add(id(value))
    if isinstance(value, Tensor):
        if (parts := getattr(value, "__tensor_flatten__", None)) is None:
            yield value
        else:
            yield from _within((getattr(value, name) for name in parts()[0]), met)
    else:
        yield from _within(_members(value), met)


def _members(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, list | tuple | set | frozenset):
        return value
    if is_dataclass(value):
        return [getattr(value, each.name) for each in fields(value) if hasattr(value, each.name)]
    return vars(value).values() if hasattr(value, "__dict__") and not callable(value) else ()


def _within(values: Iterable[Any], met: set[int]) -> Iterator[Tensor]:
    for value in values:
        yield from _tensors(value, met)
