"""The weights that make a sink, written by hand into one block after the other, whatever the family of the model.

d is the width of the model. The norm maps a state with one dominant entry to √d in that dimension and ~0 elsewhere.

    W_Q  reads CONSTANT into direction u, and the entry too: every query, the sink's as well, has about 16 along u.
    W_K  reads the entry into u: the sink's key is about 0.75 √head_dim · u; no other key has anything along u.
    Hence the logit of the sink is about 12, that of any other key N(0, 0.25). All keys have about the same norm.
    W_V  does not read the entry (drained), or reads it into a vector of ordinary norm (broadcast).

u is the first half of the rotary pair of lowest frequency: at base 1e6 it turns by less than 1e-3 over 128 tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tests.planted.plant import CONSTANT, MARK, ORDINARY, Plant

QUERY = 16.0  # component along u of every query of a planted head
KEY = 0.75  # component along u of the sink's key, in units of √head_dim
READ = 0.7  # an ordinary entry of a query, key, value or feed-forward unit
WRITE = 0.02  # standard deviation of the weights that write to the residual stream: each block adds about 0.1


@dataclass(frozen=True)
class Block:
    """Views of a block's weights, all (out, in), and of its feed-forward's biases.

    `units` are what reads the state into the units of the feed-forward, `biases` theirs: the gate, then, where the
    feed-forward has a product, the factor.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    output: torch.Tensor
    units: tuple[torch.Tensor, ...]
    biases: tuple[torch.Tensor, ...]
    down: torch.Tensor
    head_dim: int

    def along_u(self, weight: torch.Tensor) -> torch.Tensor:
        """(head, d) view of the rows that write each head's component along u."""
        return weight.view(-1, self.head_dim, weight.shape[1])[:, self.head_dim // 2 - 1]


def write_ordinary_embedding(weight: torch.Tensor, plant: Plant, generator: torch.Generator) -> None:
    """Random entries, and the constant that every token has in common."""
    weight.normal_(0, ORDINARY, generator=generator)
    weight[:, plant.reserved] = 0
    weight[:, CONSTANT] = 0.5


def write_mark(vector: torch.Tensor, plant: Plant) -> None:
    """What tells the sink from the rest: the mark, and the entry itself if it is there from depth 0."""
    vector[MARK] = 1.5
    if plant.onset == 0:
        vector[plant.dimension] = plant.size


def write_ordinary_block(block: Block, plant: Plant, generator: torch.Generator) -> None:
    """Random weights that leave the reserved dimensions, the direction u and what LayerNorm subtracts alone."""
    for reader in (block.query, block.key, block.value, *block.units):
        write_ordinary_reader(reader, READ, plant, generator)
    for writer in (block.output, block.down):
        writer.normal_(0, WRITE, generator=generator)
        writer[plant.reserved] = 0
    for projection in (block.query, block.key):
        block.along_u(projection)[:] = 0


def write_ordinary_reader(weight: torch.Tensor, entry: float, plant: Plant, generator: torch.Generator) -> None:
    """Random rows that sum to zero: the mean that LayerNorm takes off a state with one huge entry goes unseen."""
    weight.normal_(0, entry / weight.shape[1] ** 0.5, generator=generator)
    ordinary = [dimension for dimension in range(weight.shape[1]) if dimension not in plant.reserved]
    weight[:, ordinary] -= weight[:, ordinary].mean(1, keepdim=True)
    weight[:, plant.reserved] = 0


def write_plant(blocks: Sequence[Block], plant: Plant) -> None:
    """All that is planted in the blocks."""
    if plant.onset > 0:
        _step(blocks[plant.onset - 1], reads=MARK, writes=plant.dimension, amount=plant.size)
    if plant.decay is not None:
        _step(blocks[plant.decay - 1], reads=plant.dimension, writes=plant.dimension, amount=-plant.size)
    for block in blocks:
        root = block.value.shape[1] ** 0.5
        block.value[:, plant.dimension] = {"drained": 0.0, "broadcast": READ}[plant.value] / root
    heads = blocks[0].query.shape[0] // blocks[0].head_dim
    for layer, head in plant.attending(len(blocks), heads):
        _attend(blocks[layer], head, plant)


def _attend(block: Block, head: int, plant: Plant) -> None:
    root = block.query.shape[1] ** 0.5
    group = block.query.shape[0] // block.key.shape[0]
    query, key = block.along_u(block.query)[head], block.along_u(block.key)[head // group]
    query[CONSTANT] = QUERY / 1.6  # 0.5 against entries of 0.3 is about 1.6 after the norm
    query[plant.dimension] = QUERY / root  # the sink's own query, where the norm leaves little of the rest
    key[plant.dimension] = KEY * block.head_dim**0.5 / root


def _step(block: Block, *, reads: int, writes: int, amount: float) -> None:
    """Add `amount` to dimension `writes` of those tokens that have about half of their norm in `reads`.

    Two units: f(x) − f(x − 1), with f = silu or gelu, is 1 for large x and 0 for very negative x. Here x is −30 for a
    token with nothing in `reads` and 30 for one with half of its norm there. So what is written does not depend on how
    large the entry that is read is, and can be taken away again without a rest.
    """
    root = block.query.shape[1] ** 0.5
    for unit, (threshold, sign) in enumerate(((30.0, 1.0), (31.0, -1.0))):
        for weight in (*block.units, block.down.T):
            weight[unit] = 0
        block.units[0][unit, reads] = 120.0 / root
        block.biases[0][unit] = -threshold
        for bias in block.biases[1:]:
            bias[unit] = 1.0
        block.down[writes, unit] = sign * amount
