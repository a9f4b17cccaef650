"""What pieces of other packages derive from, beside `normalizers.base.Normalizer` and `masks.Combinable`.

A piece is a frozen value with a `kind`; `build` makes the module that holds what it learns. How each place calls that
module stands here once; sinkscope's own pieces keep to the same.
"""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from sinkscope.attention.sizes import Sizes


class _Piece:
    """`needs_every_key`: whether it is another piece once a cache dropped keys, which caches then refuse; so they do
    unless a piece says that it is not."""

    kind: str
    needs_every_key: ClassVar[bool] = True

    def build(self, sizes: Sizes) -> nn.Module:
        """The module of one layer."""
        raise NotImplementedError


class Similarity(_Piece):
    """A map φ: s_tk = scaling · φ(q_t)·φ(k_k).

    Its module takes queries (batch, heads, query, dim) or keys (batch, kv_heads, key, dim), after rotation, in fp32 at
    least, and gives tensors of the same first three dimensions.
    """


class Slot(_Piece):
    """Something to attend to that is no token.

    Its module takes a `Context` and gives `SlotTerms`, or a tuple of as many as its `count` says. `has_value`: whether
    it adds to outputs; `needs_hidden`: whether it reads the block's input (`context.hidden`).
    """

    has_value: bool = False
    needs_hidden: bool = False


class Output(_Piece):
    """What happens to aggregated values.

    Its module takes them, (batch, heads, query, dim), and the block's input, (batch, query, width), and gives what
    leaves in the shape of the first. `needs_hidden`: whether it reads that input. `as_wide_as_heads`: whether it has a
    number for each channel of a head, so that values must be as wide as heads.
    """

    needs_hidden: bool = False
    as_wide_as_heads: ClassVar[bool] = True
