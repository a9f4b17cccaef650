"""How a cache rounds: the grids of keys and values, and when a token is rounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from sinkscope.errors import InputError
from sinkscope.grids import Grid

PACKED = 8  # bits of a stored code, at most
Count = TypeVar("Count", int, Tensor)


@dataclass(frozen=True)
class CacheScheme:
    """The grids of keys and values; the newest `window` tokens stay in full precision.

    A range over tokens is known once all of them are cached, so tokens close in blocks: blocks of the larger `group` of
    the grids over a "channel", and of 1 if no grid is over a "channel". A block closes, once and for good, when all its
    tokens are cached and none is among the newest `window`. Blocks count the real tokens of a row from its first.

    Ranges over a "head", over the "tensor" (all heads of a row of the batch) and over a "channel" without groups grow
    with the text: each token is rounded with the range of all tokens up to and including it.

    Raises `InputError` for groups over tokens of which one does not divide the other, and for a negative window.
    """

    keys: Grid
    values: Grid
    window: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.window, bool) or not isinstance(self.window, int) or self.window < 0:
            raise InputError(f"window = {self.window!r}: expected a number of tokens, at least 0")
        small, large = sorted(self._groups)
        if large % small:
            raise InputError(
                f"keys close in groups of {self._groups[0]} tokens and values in groups of {self._groups[1]}: one must "
                "divide the other"
            )

    @property
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
        return self.keys.exact and self.values.exact

    def closed(self, tokens: Count) -> Count:
        """How many of a row's first `tokens` tokens are rounded."""
        older = tokens - self.window
        older = max(older, 0) if isinstance(older, int) else older.clamp(min=0)
        return older // self.block * self.block

    def check_stored(self) -> None:
        """Raises `InputError` for grids whose codes cannot be stored."""
        for name, grid in (("keys", self.keys), ("values", self.values)):
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
        return {"keys": vars(self.keys), "values": vars(self.values), "window": self.window}

    @property
    def _groups(self) -> tuple[int, int]:
        return tuple(  # type: ignore[return-value]
            grid.group or 1 if grid.over == "channel" and not grid.exact else 1 for grid in (self.keys, self.values)
        )
