"""What a stream costs: its speed, and the memory that its cache and the process hold."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import Cache

from sinkscope.caches.sizes import held_bytes


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
            "cache_bytes": held_bytes(self.cache),
            "peak_bytes": peak_bytes(),
        }

    def __str__(self) -> str:
        found = self.figures()
        return (
            f"{self.tokens:,} tokens, {self.speed:,.0f} a second, {found['seen']:,} seen; cache "
            f"{found['cache_bytes'] / 2**20:,.2f} MiB, peak {found['peak_bytes'] / 2**20:,.0f} MiB"
        )


def peak_bytes() -> int:
    """The most that was in use: on the GPU where there is one in use, otherwise of this process."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
