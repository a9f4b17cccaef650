"""How a cache rounds: the grids of keys and values, and when a token is rounded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from torch import Tensor

from sinkscope.errors import InputError
from sinkscope.grids import Grid, Numbers, RowFormat, described_numbers, inner_of, layer_numbers

PACKED = 8  # bits of a stored code, at most
Count = TypeVar("Count", int, Tensor)


@dataclass(frozen=True)
class CacheScheme:
    """How keys and values are rounded; the newest `window` tokens stay in full precision.

    `keys`, `values`: a grid, a format that stores each token by itself, or either of them `Rotated`. `ends`: how
    many first and how many last layers stay as they are, at most half of the layers each; `skip`: numbers of further
    layers that stay.

    A range over tokens is known once all of them are cached, so tokens close in blocks: blocks of the larger `group` of
    the grids over a "channel", and of 1 if no grid is over a "channel". A block closes, once and for good, when all its
    tokens are cached and none is among the newest `window`. Blocks count the real tokens of a row from its first.

    Ranges over a "head", over the "tensor" (all heads of a row of the batch) and over a "channel" without groups grow
    with the text: each token is rounded with the range of all tokens up to and including it.

    Raises `InputError` for groups over tokens of which one does not divide the other, for negative numbers, and for
    layers that are no numbers.
    """

    keys: Numbers
    values: Numbers
    window: int = 0
    ends: int = 0
    skip: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not all(isinstance(layer, int) and not isinstance(layer, bool) and layer >= 0 for layer in self.skip):
            raise InputError(f"skip = {self.skip!r}: numbers of layers, the first of which is 0")
        for name, what in (("window", "tokens"), ("ends", "layers")):
            number = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise InputError(f"{name} = {number!r}: expected a number of {what}, at least 0")
        # A block closes for keys and values at once, so it must consist of whole groups of both.
        small, large = sorted(self._groups)
        if large % small:
            raise InputError(
                f"keys close in groups of {self._groups[0]} tokens and values in groups of {self._groups[1]}: one must "
                "divide the other"
            )

    @cached_property
    def block(self) -> int:
        """How many tokens close together."""
        return max(self._groups)

    @property
    def at_once(self) -> bool:
        """Whether each token is rounded as soon as it arrives."""
        return self.block == 1 and self.window == 0

    @property
    def exact(self) -> bool:
        """Whether nothing is rounded."""
        return all(isinstance(grid, Grid) and grid.exact for grid in self._inner)

    def at(self, layer: int) -> CacheScheme:
        """The scheme of one layer: scales of whole tensors differ between layers."""
        return replace(self, keys=layer_numbers(self.keys, layer), values=layer_numbers(self.values, layer))

    def closed(self, tokens: Count) -> Count:
        """How many of a row's first `tokens` tokens are rounded."""
        older = tokens - self.window
        older = max(older, 0) if isinstance(older, int) else older.clamp(min=0)
        return older // self.block * self.block

    def check_stored(self) -> None:
        """Raises `InputError` for grids whose codes cannot be stored."""
        for name, grid in zip(("keys", "values"), self._inner, strict=True):
            if not isinstance(grid, Grid):
                continue
            if grid.bits > PACKED and not grid.exact:
                raise InputError(
                    f"{name} of {grid.bits} bits: codes have 1 to {PACKED} bits; 16 bits store the numbers"
                )
            if not grid.exact and not (grid.over == "token" or (grid.over == "channel" and grid.group)):
                raise InputError(
                    f"{name} with a range over a whole '{grid.over}', which changes with every new token: "
                    "use over='token', or over='channel' with a group of tokens, such as group=32"
                )

    def describe(self) -> dict[str, Any]:
        """As JSON-able data."""
        about = {"keys": described_numbers(self.keys), "values": described_numbers(self.values), "window": self.window}
        return about | ({"ends": self.ends} if self.ends else {}) | ({"skip": list(self.skip)} if self.skip else {})

    @property
    def _inner(self) -> tuple[Grid | RowFormat, Grid | RowFormat]:
        return inner_of(self.keys), inner_of(self.values)

    @property
    def _groups(self) -> tuple[int, int]:
        return tuple(  # type: ignore[return-value]
            grid.group or 1 if isinstance(grid, Grid) and grid.over == "channel" and not grid.exact else 1
            for grid in self._inner
        )
