"""Orthogonal matrices that spread outlying channels over all others: Hadamard blocks, random matrices, permutations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinkscope.errors import InputError

RotationKind = Literal["hadamard", "orthogonal"]
FEWEST = 8  # a smaller Hadamard block spreads an outlier over too few channels: a random orthogonal matrix is used


@dataclass(frozen=True, eq=False)
class Blocks:
    """Multiplies each block of consecutive entries by one orthogonal matrix."""

    matrix: Float[Tensor, "block block"]

    def __call__(self, rows: Float[Tensor, "*row in"]) -> Float[Tensor, "*row in"]:
        # (…, blocks · block) → (…, blocks, block) and back.
        return (rows.unflatten(-1, (-1, len(self.matrix))) @ self.matrix.to(rows)).flatten(-2)


@dataclass(frozen=True, eq=False)
class Order:
    """Permutes the entries: entry i becomes entry `order[i]` of the input."""

    order: Int[Tensor, "in"]

    def __call__(self, rows: Float[Tensor, "*row in"]) -> Float[Tensor, "*row in"]:
        return rows[..., self.order.to(rows.device)]


def rotation(width: int, kind: RotationKind, seed: int) -> tuple[Blocks, ...]:
    """A rotation of vectors of one width.

    "hadamard": random signs and a Hadamard matrix, in blocks of the largest power of two that divides the width, if
    that is at least 8 (336 = 16 · 21 has blocks of 16). "orthogonal", and widths without such a block: a random
    orthogonal matrix.
    """
    block = width & -width  # the largest power of two that divides it
    generator = torch.Generator().manual_seed(seed)
    if kind == "orthogonal" or block < FEWEST:
        return (Blocks(random_orthogonal(width, generator)),)
    # Without the signs, a block of equal entries would end up in a single one, and every seed would give the same H.
    signs = torch.randint(2, (block,), generator=generator).double() * 2 - 1
    return (Blocks(signs[:, None] * hadamard(block)),)


def hadamard(size: int) -> Float[Tensor, "size size"]:
    """H / sqrt(size) by Sylvester's construction, orthogonal and symmetric.

    Raises `InputError` unless `size` is a power of two.
    """
    if size < 1 or size & (size - 1):
        raise InputError(f"no Hadamard matrix of size {size}: Sylvester's construction needs a power of two")
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / size**0.5


def random_orthogonal(size: int, generator: torch.Generator) -> Float[Tensor, "size size"]:
    """A matrix drawn uniformly from the orthogonal group: Q of a Gaussian matrix, columns signed by R's diagonal."""
    q, r = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=generator))
    # QR is unique only with a positive diagonal of R: with LAPACK's own signs, Q would not be uniform.
    return q * r.diagonal().sign()
