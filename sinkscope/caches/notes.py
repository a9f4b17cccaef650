"""Notes that policies keep between passes: values for each stored key, or something for each sample."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinkscope.attention.scores import wide
from sinkscope.caches.call import EvictionCall
from sinkscope.errors import InputError

# The sign bit stays clear, so that shifts to the right bring in zeros.
BITS = 60  # bits used of each 64-bit integer


@dataclass(frozen=True)
class Heads:
    """A layer's number of query heads and of key-value heads, their dimension, and the bytes of one number."""

    query: int
    kv: int
    dim: int
    number: int


class KeyNote:
    """Values that belong to a stored key, (batch, kv_heads, key, …). They move and are evicted with it.

    `one_pass`: as in `RowNote`.
    """

    reads_weights = False
    of_queries = True
    """Whether later passes change it."""
    one_pass = False

    def bytes_each(self, heads: Heads) -> int:
        """Bytes per stored key of one key-value head."""
        return 4

    def of_new(self, call: EvictionCall) -> Tensor:
        """Initial values of the keys that a pass adds, (batch, kv_heads, query, …)."""
        raise NotImplementedError

    def add(self, call: EvictionCall, stored: Tensor) -> None:
        """Update the values of all stored keys in place with the pass's queries."""


class RowNote:
    """What is kept of each sample's passes; the first dimension is the sample."""

    reads_weights = False
    one_pass = False
    """Whether a pass of several tokens is scored by its own queries if decoded tokens evict nothing.

    Then when="prefill" drops the note after the pass: for short contexts it can be larger than the keys.
    """

    def bytes_held(self, heads: Heads, tokens: int) -> int:
        """Bytes per layer for a text of so many tokens."""
        return 0

    def after(self, call: EvictionCall, before: Tensor | None) -> Tensor:
        """The note after a pass. It must not keep the pass's own tensors alive."""
        raise NotImplementedError


Note = KeyNote | RowNote


@dataclass(frozen=True)
class Received(KeyNote):
    """Σ of the attention weights that a key has received, averaged over the query heads of its group; fp32."""

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
        """Their attention weights on all stored keys; fewer rows if the text is shorter than the window."""
        if call.queries >= self.window:
            return call.weights(slice(-self.window, None))
        query = call.notes.get(self, call.query)
        columns = torch.arange(call.total - query.shape[2], call.total, device=query.device)
        return call.weights_of(query, columns)

    def received(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
        """The sum of these weights over the queries, averaged over a head group."""
        if call.queries >= self.window or self not in call.notes:
            return self.weights(call).sum(3).mean(2)
        query = call.notes[self]  # of earlier passes and of this one
        columns = torch.arange(call.total - query.shape[2], call.total, device=query.device)
        # A sample at a time: weights of all of them would not fit the processor's cache.
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
    """Whether a key's token is one of `ids`: 1 or 0."""

    ids: tuple[int, ...]

    of_queries = False

    def of_new(self, call: EvictionCall) -> Tensor:
        if call.ids is None:
            raise InputError("tokens are recognized by their input_ids, but the model was given embeddings")
        marked = torch.isin(call.ids, torch.tensor(self.ids, device=call.ids.device)).float()
        return marked[:, None].expand(-1, call.key.shape[1], -1).to(call.key.device)


@dataclass(frozen=True)
class Pivotal(KeyNote):
    """Which of the last `window` queries gave a key at least the uniform share: A[t, k] ≥ 1 / (keys that t sees).

    A is averaged over a head group, as computed when t arrived. Each query takes one bit, `BITS` of them per integer,
    and the last integer counts the bits that are set: (batch, kv_heads, key, ⌈window / 60⌉ + 1). The query in column t
    has bit number t modulo `window`.
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
        # Earlier queries of a longer pass would be overwritten by its later ones.
        column = max(first, call.total - self.window)
        while column < call.total:  # all queries that share an integer at once
            slot = column % self.window
            number, bit = divmod(slot, BITS)
            # Up to the end of the integer, of the ring of bits, or of the pass.
            count = min(BITS - bit, self.window - slot, call.total - column)
            rows = self._rows(call, slice(column - first, column - first + count))
            bits_before = stored[..., number]
            if call.queries == 1:
                bits = rows[:, :, 0].long()
                # The new bit replaces that of the query `window` tokens ago.
                stored[..., -1] += bits - ((bits_before >> bit) & 1)
                stored[..., number] = (bits_before & ~(1 << bit)) | (bits << bit)
                return
            bits = (rows.long() << torch.arange(bit, bit + count, device=stored.device)[:, None]).sum(2)
            stored[..., number] = (bits_before & ~(((1 << count) - 1) << bit)) | bits
            column += count
        stored[..., -1] = _ones(stored[..., :-1]).sum(-1)

    def _rows(self, call: EvictionCall, rows: slice) -> Bool[Tensor, "batch kv_heads n key"]:
        """For some queries of a pass, the keys to which they give at least the uniform share."""
        weights = call.weights(rows)
        mean = weights[:, :, 0] if weights.shape[2] == 1 else weights.mean(2)
        if (
            call.queries == 1 and call.pads is None and call.at is not None
        ):  # every slot holds a key that the query sees
            # A ≥ 1 / n, with n the number of slots.
            return mean * mean.shape[-1] >= 1
        columns = torch.arange(call.total - call.queries, call.total, device=weights.device)[rows]
        seen = (call.places[:, :, None] <= columns[:, None]) & call.real[:, :, None]
        return (mean * seen.sum(-1, keepdim=True) >= 1) & (mean > 0)


def _ones(x: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """How many bits of each number are set."""
    # Sums in fields of 2, 4 and 8 bits; the product then adds all bytes up in the highest one.
    pairs = x - ((x >> 1) & 0x5555555555555555)
    fours = (pairs & 0x3333333333333333) + ((pairs >> 2) & 0x3333333333333333)
    eights = (fours + (fours >> 4)) & 0x0F0F0F0F0F0F0F0F
    return (eights * 0x0101010101010101) >> 56
