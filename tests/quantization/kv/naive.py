"""A quantized cache written down naively: everything is kept in full precision, and rounded anew at each step by loops.

Nothing of `sinkscope` is in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer


@dataclass(frozen=True)
class Side:
    """How keys or values are rounded: over "token" or "channel", in groups of `group` channels or tokens."""

    bits: int
    over: str
    group: int | None = None
    symmetric: bool = False


def down(x: float) -> float:
    return float(np.float16(x - abs(x) * 2**-10 - 2**-25))


def up(x: float) -> float:
    return float(np.float16(x * (1 + 2**-10) + 2**-25)) if x > 0 else 0.0


def of_range(numbers: list[float], counted: list[bool], side: Side) -> list[float]:
    """The numbers of one range, those that count for it rounded."""
    kept = [x for x, counts in zip(numbers, counted, strict=True) if counts]
    if not kept:
        return numbers
    if side.symmetric:
        top = 2 ** (side.bits - 1) - 1
        low, step, bottom = 0.0, up(max(map(abs, kept)) / top), -top
    else:
        top, bottom = 2**side.bits - 1, 0
        low = down(min(kept))
        step = up((min(kept) - low + (max(kept) - min(kept))) / top)
    codes = [0 if step == 0 else max(bottom, min(top, round((x - low) / step))) for x in kept]
    found = iter([low + code * step for code in codes])
    return [next(found) if counts else x for x, counts in zip(numbers, counted, strict=True)]


def of_block(x: Tensor, counted: list[bool], side: Side) -> Tensor:
    """A block (token, dim) of one head, rounded range by range."""
    out = x.double().tolist()
    tokens, dim = len(out), len(out[0])
    if side.bits == 16:
        return x
    if side.over == "token":
        size = side.group or dim
        for token in range(tokens):
            for start in range(0, dim, size):
                part = slice(start, start + size)
                out[token][part] = of_range(out[token][part], [counted[token]] * size, side)
    else:
        assert side.group is not None
        for channel in range(dim):
            for start in range(0, tokens, side.group):
                of = range(start, start + side.group)
                new = of_range([out[t][channel] for t in of], [counted[t] for t in of], side)
                for t, value in zip(of, new, strict=True):
                    out[t][channel] = value
    return torch.tensor(out, dtype=x.dtype)


class NaiveLayer(DynamicLayer):
    """`protected`: (batch, column) of everything that will ever come; `pads`: padding of each row."""

    def __init__(self, keys: Side, values: Side, window: int, pads: list[int], protected: Tensor) -> None:
        super().__init__()
        self.sides, self.window, self.pads, self.protected = (keys, values), window, pads, protected
        self.block = max(side.group or 1 if side.over == "channel" else 1 for side in self.sides)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        before = self.get_seq_length()
        both = super().update(key_states, value_states)
        alone = key_states.shape[2] == 1
        tokens = both[0].shape[2] if alone else before
        return tuple(self._rounded(x, side, tokens) for x, side in zip(both, self.sides, strict=True))  # type: ignore[return-value]

    def _rounded(self, x: Tensor, side: Side, tokens: int) -> Tensor:
        out = x.clone()
        for row, pad in enumerate(self.pads):
            closed = max(0, tokens - pad - self.window) // self.block * self.block
            for start in range(pad, pad + closed, self.block):
                part = slice(start, start + self.block)
                counted = [not bool(one) for one in self.protected[row, part]]
                for head in range(x.shape[1]):
                    out[row, head, part] = of_block(x[row, head, part], counted, side)
        return out


def naive_cache(config: Any, make: Callable[[], NaiveLayer], which: list[int]) -> DynamicCache:
    """transformers' cache with naive layers in the places `which`."""
    cache = DynamicCache(config=config)
    for index in which:
        cache.layers[index] = make()
    return cache
