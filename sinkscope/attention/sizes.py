"""The sizes an operation is built for."""

from __future__ import annotations

from dataclasses import dataclass

from sinkscope.errors import InputError


@dataclass(frozen=True)
class Sizes:
    """Query heads, key-value heads, width of one head, width of the block's input, index of the layer."""

    heads: int
    kv_heads: int
    head_dim: int
    hidden_size: int
    layer: int = 0

    def __post_init__(self) -> None:
        for name in ("heads", "kv_heads", "head_dim", "hidden_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} = {getattr(self, name)}: at least 1")
        if self.heads % self.kv_heads:
            divisors = [n for n in range(1, self.heads + 1) if self.heads % n == 0]
            raise InputError(f"kv_heads = {self.kv_heads} does not divide heads = {self.heads}: choose from {divisors}")
