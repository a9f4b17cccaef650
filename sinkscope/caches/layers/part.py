"""A layer's part of a stack of layers."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor


class Mark:
    """Tells a stack from others. Parts have it in place of their stack.

    In a circle with its layers a stack would stay until Python's collector runs, and with it all keys and values of a
    cache that nobody holds any more.
    """


@dataclass(eq=False)
class Part:
    """Views of what a layer of a stack stores, of where its next key goes, and of room for a token's weights.

    `mark`: that of the stack.
    """

    mark: Mark
    keys: Float[Tensor, "batch heads slots dim"]
    values: Float[Tensor, "batch heads slots value_dim"]
    into_keys: Int[Tensor, "batch heads 1 dim"]
    into_values: Int[Tensor, "batch heads 1 value_dim"]
    weights: Float[Tensor, "batch heads group 1 slots"]

    def put(self, key: Tensor, value: Tensor) -> None:
        """A token's key and value, where the key stood that went last."""
        self.keys.scatter_(2, self.into_keys, key)
        self.values.scatter_(2, self.into_values, value)
