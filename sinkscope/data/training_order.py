"""The order in which training sees its windows, and mixtures of several sets of windows (Gu et al. 2025)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor
from torch.utils.data import Dataset

from sinkscope.data.windows import SomeWindows, Window, Windows, seeded
from sinkscope.errors import InputError

DRAWN = 1 << 16  # choices are drawn so many at a time


class MixedWindows(Dataset[Window]):
    """All windows of all parts, one part after the other; training draws each item's part by its weight.

    Item i of training is of part d with probability `weights[d]`, independently of all others, and within the part it
    is the next window of that part's own shuffled passes. All windows have the same number of tokens, so weights are
    shares of tokens. The paper's code draws a domain for each block with `random.choices` (pretrain/tinyllama.py); it
    normalizes its weights, ours sum to 1.
    """

    def __init__(self, parts: Sequence[Windows | SomeWindows], weights: Sequence[float]) -> None:
        self.parts, self.weights = tuple(parts), tuple(weights)
        self.stops = list(accumulate(map(len, self.parts)))

    def __len__(self) -> int:
        return self.stops[-1]

    def __getitem__(self, index: int) -> Window:
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        part = bisect_right(self.stops, index)
        return self.parts[part][index - self._first(part)]

    def index(self, item: int, seed: int) -> int:
        """Which window item i of training is; (seed, i) alone decide."""
        part, number = self.turn(item, seed)
        return self._first(part) + shuffled_index(len(self.parts[part]), number, "mixture", part, seed)

    def turn(self, item: int, seed: int) -> tuple[int, int]:
        """The part that item i is of, and how many items before it are of that part."""
        block, within = divmod(item, DRAWN)
        choices = _choices(self.weights, seed, block)
        part = int(choices[within])
        before = int(_before(self.weights, seed, block)[part])
        return part, before + int((choices[:within] == part).sum())

    def _first(self, part: int) -> int:
        return self.stops[part] - len(self.parts[part])


class TrainingOrder(Dataset[Window]):
    """The `steps` · `batch_size` windows that training sees, in order: item i belongs to step i // batch_size.

    Every pass over the windows is a permutation of its own, drawn from `seed` and the number of the pass; of a mixture
    each part has its passes, and which part an item is of is drawn by weight (`MixedWindows`). Item i depends on (seed,
    i) and on nothing before it, so a resumed run continues at any item without a stored state. It is to be read in
    sequence, by a sampler that does not shuffle again.
    """

    def __init__(self, windows: Dataset[Window], batch_size: int, steps: int, seed: int) -> None:
        if batch_size < 1 or steps < 1:
            raise InputError(f"batch_size {batch_size} and steps {steps} must be at least 1")
        self.windows, self.seed = windows, seed
        self.total = steps * batch_size

    def __len__(self) -> int:
        return self.total

    def __getitem__(self, item: int) -> Window:
        return self.windows[self.index(item)]

    def index(self, item: int) -> int:
        """Which window item i is."""
        if not 0 <= item < self.total:
            raise IndexError(f"item {item} of {self.total}")
        if isinstance(self.windows, MixedWindows):
            return self.windows.index(item, self.seed)
        count = len(self.windows)  # type: ignore[arg-type]
        return shuffled_index(count, item, "epoch", self.seed)


def shuffled_index(count: int, number: int, *name: object) -> int:
    """The window at turn `number` of endless passes over `count` windows; each pass is a permutation of its own."""
    return int(_permutation(count, *name, number // count)[number % count])


@lru_cache(maxsize=32)
def _permutation(count: int, *name: object) -> Tensor:
    return torch.randperm(count, generator=seeded(*name))


@lru_cache(maxsize=64)
def _choices(weights: tuple[float, ...], seed: int, block: int) -> Tensor:
    drawn = torch.multinomial(
        torch.tensor(weights, dtype=torch.float64), DRAWN, replacement=True, generator=seeded("part", seed, block)
    )
    # Blocks stay in the function's cache: a byte for each choice instead of eight.
    return drawn.to(torch.uint8 if len(weights) <= 256 else torch.int32)


def _before(weights: tuple[float, ...], seed: int, block: int) -> Tensor:
    """How many items of each part there are before a block; every block is counted once."""
    # The cached list itself grows here, so no block is counted twice.
    counts = _counted(weights, seed)
    while len(counts) <= block:
        drawn = _choices(weights, seed, len(counts) - 1)
        counts.append(counts[-1] + torch.bincount(drawn.long(), minlength=len(weights)))
    return counts[block]


@lru_cache(maxsize=8)
def _counted(weights: tuple[float, ...], seed: int) -> list[Tensor]:
    return [torch.zeros(len(weights), dtype=torch.int64)]
