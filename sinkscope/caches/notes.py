"""What is kept of passes for policies: a number for each stored key, or something for each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinkscope.caches.call import EvictionCall, wide
from sinkscope.errors import InputError

BITS = 60  # of a number that are used


@dataclass(frozen=True)
class Heads:
    """A layer's query heads, key-value heads, dimension of each, and the bytes of a number."""

    query: int
    kv: int
    dim: int
    number: int


class KeyNote:
    """Numbers that belong to a stored key, (batch, kv_heads, key, …): they move with it, and go with it.

    `one_pass`: as in `RowNote`.
    """

    reads_weights = False
    of_queries = True
    """Whether passes after the key's own change it."""
    one_pass = False

    def bytes_each(self, heads: Heads) -> int:
        """What a stored key of a key-value head costs."""
        return 4

    def of_new(self, call: EvictionCall) -> Tensor:
        """Those of the keys that a pass adds, (batch, kv_heads, query, …)."""
        raise NotImplementedError

    def add(self, call: EvictionCall, stored: Tensor) -> None:
        """What the pass's queries change, in place, in those of all keys."""


class RowNote:
    """What is kept of each sample's passes, with the sample as its first dimension."""

    reads_weights = False
    one_pass = False
    """Whether a pass of several tokens is scored by its own queries where nothing is evicted between such passes.

    Then it is not kept after the pass with when="prefill": at short contexts it may weigh more than the keys.
    """

    def bytes_held(self, heads: Heads, tokens: int) -> int:
        """What a layer keeps of a text of so many tokens."""
        return 0

    def after(self, call: EvictionCall, before: Tensor | None) -> Tensor:
        """What is kept after a pass. It must hold nothing of the pass's own memory."""
        raise NotImplementedError


Note = KeyNote | RowNote


@dataclass(frozen=True)
class Received(KeyNote):
    """Σ of the weights that a key received so far, mean over the query heads of its group; fp32."""

    reads_weights = True

    def of_new(self, call: EvictionCall) -> Tensor:
        return torch.zeros(*call.key.shape[:2], call.queries, device=call.key.device)

    def add(self, call: EvictionCall, stored: Float[Tensor, "batch kv_heads key"]) -> None:
        for rows in call.row_parts():
            stored += call.received(rows)


@dataclass(frozen=True)
class LastQueries(RowNote):
    """The last `window` queries, after rotation: (batch, heads, window, dim)."""

    window: int
    one_pass = True

    def bytes_held(self, heads: Heads, tokens: int) -> int:
        return heads.query * min(self.window, tokens) * heads.dim * heads.number

    def after(self, call: EvictionCall, before: Tensor | None) -> Tensor:
        if before is None or call.queries >= self.window:
            return call.query[:, :, -self.window :].clone()
        return torch.cat([before, call.query], 2)[:, :, -self.window :].clone()

    def weights(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads group n key"]:
        """Their weights on all keys that are stored now; fewer rows where the text is shorter than the window."""
        if call.queries >= self.window:
            return call.weights(slice(-self.window, None))
        query = call.notes.get(self, call.query)
        columns = torch.arange(call.total - query.shape[2], call.total, device=query.device)
        return call.weights_of(query, columns)

    def received(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
        """The sum of these weights over the queries, mean over a head group."""
        if call.queries >= self.window or self not in call.notes:
            return self.weights(call).sum(3).mean(2)
        query = call.notes[self]
        columns = torch.arange(call.total - query.shape[2], call.total, device=query.device)
        sums = [
            call.sample(row).weights_of(query[row : row + 1], columns).sum(3).mean(2) for row in range(len(call.key))
        ]
        return torch.cat(sums)


@dataclass(frozen=True)
class KeyLengths(KeyNote):
    """‖k‖₂ of each key; fp32."""

    of_queries = False

    def of_new(self, call: EvictionCall) -> Tensor:
        return torch.linalg.vector_norm(wide(call.of_new(call.key)), dim=-1)


@dataclass(frozen=True)
class ValueLengths(KeyNote):
    """‖v‖₁ of each key's value; fp32."""

    of_queries = False

    def of_new(self, call: EvictionCall) -> Tensor:
        return wide(call.of_new(call.value)).abs().sum(-1)


@dataclass(frozen=True)
class Marked(KeyNote):
    """Whether a key is one of the tokens `ids`: 1 or 0."""

    ids: tuple[int, ...]

    of_queries = False

    def of_new(self, call: EvictionCall) -> Tensor:
        if call.ids is None:
            raise InputError("which tokens are meant shows in input_ids, and the model was given embeddings")
        found = torch.isin(call.ids, torch.tensor(self.ids, device=call.ids.device)).float()
        return found[:, None].expand(-1, call.key.shape[1], -1).to(call.key.device)


def weights_read(needs: Sequence[Note]) -> bool:
    """Whether any of these notes asks for attention weights."""
    return any(note.reads_weights for note in needs)


@dataclass(frozen=True)
class Pivotal(KeyNote):
    """Which of the last `window` queries gave a key at least what is even: A[t, k] ≥ 1 / (keys that t sees).

    A is the mean over a head group, as it was when t came. One bit a query, 60 of them to a number, and at last how
    many are set: (batch, kv_heads, key, ⌈window / 60⌉ + 1). The bit of the query in column t is number t modulo
    `window`.
    """

    window: int
    reads_weights = True
    one_pass = True

    def bytes_each(self, heads: Heads) -> int:
        return 8 * self._numbers

    @property
    def _numbers(self) -> int:
        return -(-self.window // BITS) + 1

    def of_new(self, call: EvictionCall) -> Tensor:
        shape = *call.key.shape[:2], call.queries, self._numbers
        return torch.zeros(shape, dtype=torch.int64, device=call.key.device)

    def add(self, call: EvictionCall, stored: Int[Tensor, "batch kv_heads key numbers"]) -> None:
        first = call.total - call.queries
        column = max(first, call.total - self.window)
        while column < call.total:  # as many queries at once as share a number
            slot = column % self.window
            number, bit = divmod(slot, BITS)
            count = min(BITS - bit, self.window - slot, call.total - column)
            rows = self._rows(call, slice(column - first, column - first + count))
            own = stored[..., number]
            if call.queries == 1:
                bits = rows[:, :, 0].long()
                stored[..., -1] += bits - ((own >> bit) & 1)
                stored[..., number] = (own & ~(1 << bit)) | (bits << bit)
                return
            bits = (rows.long() << torch.arange(bit, bit + count, device=stored.device)[:, None]).sum(2)
            stored[..., number] = (own & ~(((1 << count) - 1) << bit)) | bits
            column += count
        stored[..., -1] = _ones(stored[..., :-1]).sum(-1)

    def _rows(self, call: EvictionCall, rows: slice) -> Bool[Tensor, "batch kv_heads n key"]:
        """For some queries of a pass, the keys to which they give at least what is even."""
        weights = call.weights(rows)
        mean = weights[:, :, 0] if weights.shape[2] == 1 else weights.mean(2)
        if call.queries == 1 and call.pads is None and call.at is not None:  # every slot holds a key that it sees
            return mean * mean.shape[-1] >= 1
        columns = torch.arange(call.total - call.queries, call.total, device=weights.device)[rows]
        seen = (call.places[:, :, None] <= columns[:, None]) & call.real[:, :, None]
        return (mean * seen.sum(-1, keepdim=True) >= 1) & (mean > 0)


def _ones(x: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """How many of the bits of each number are set."""
    pairs = x - ((x >> 1) & 0x5555555555555555)
    fours = (pairs & 0x3333333333333333) + ((pairs >> 2) & 0x3333333333333333)
    eights = (fours + (fours >> 4)) & 0x0F0F0F0F0F0F0F0F
    return (eights * 0x0101010101010101) >> 56
