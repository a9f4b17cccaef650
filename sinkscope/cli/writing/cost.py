"""What a stream costs: its speed, and the memory that its cache and the process hold."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import Cache


@dataclass
class Cost:
    """Counts tokens and time since it was made."""

    cache: Cache
    tokens: int = 0
    start: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.start

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.tokens / max(self.seconds, 1e-9)

    def figures(self) -> dict[str, Any]:
        """All of it, in tokens, seconds and bytes."""
        return {
            "tokens": self.tokens,
            "seconds": round(self.seconds, 3),
            "tokens_per_second": round(self.speed, 1),
            "seen": int(self.cache.get_seq_length()),
            "cache_bytes": cache_bytes(self.cache),
            "peak_bytes": peak_bytes(),
        }

    def __str__(self) -> str:
        found = self.figures()
        return (
            f"{self.tokens:,} tokens, {self.speed:,.0f} a second, {found['seen']:,} seen; cache "
            f"{found['cache_bytes'] / 2**20:,.2f} MiB, peak {found['peak_bytes'] / 2**20:,.0f} MiB"
        )


def cache_bytes(cache: Cache) -> int:
    """Bytes of the distinct storages that the layers of a cache hold: a view holds all of what it looks at."""
    found: dict[int, int] = {}
    for layer in cache.layers:
        for tensor in _tensors(vars(layer).values()):
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


def peak_bytes() -> int:
    """The most that was in use: on the GPU where there is one in use, otherwise of this process."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
        elif isinstance(value, dict):
            yield from _tensors(value.values())
