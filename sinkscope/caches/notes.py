"""What is kept of passes for policies: a number for each stored key, or something for each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.caches.call import EvictionCall, wide
from sinkscope.errors import InputError


class KeyNote:
    """Numbers that belong to a stored key, (batch, kv_heads, key, …): they move with it, and go with it."""

    reads_weights = False

    def of_new(self, call: EvictionCall) -> Tensor:
        """Those of the keys that a pass adds, (batch, kv_heads, query, …)."""
        raise NotImplementedError

    def add(self, call: EvictionCall, stored: Tensor) -> None:
        """What the pass's queries change, in place, in those of all keys."""


class RowNote:
    """What is kept of each sample's passes, with the sample as its first dimension."""

    reads_weights = False

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
    """The last `window` queries, behind rotation: (batch, heads, window, dim)."""

    window: int

    def after(self, call: EvictionCall, before: Tensor | None) -> Tensor:
        if before is None or call.queries >= self.window:
            return call.query[:, :, -self.window :].clone()
        return torch.cat([before, call.query], 2)[:, :, -self.window :].clone()

    def weights(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads group n key"]:
        """Their weights on all keys that are stored now; fewer rows where the text is shorter than the window."""
        if call.queries >= self.window:
            return call.weights(slice(-self.window, None))
        query = call.notes[self]
        columns = torch.arange(call.total - query.shape[2], call.total, device=query.device)
        return call.weights_of(query, columns)


@dataclass(frozen=True)
class KeyLengths(KeyNote):
    """‖k‖₂ of each key; fp32."""

    def of_new(self, call: EvictionCall) -> Tensor:
        return torch.linalg.vector_norm(wide(call.of_new(call.key)), dim=-1)


@dataclass(frozen=True)
class ValueLengths(KeyNote):
    """‖v‖₁ of each key's value; fp32."""

    def of_new(self, call: EvictionCall) -> Tensor:
        return wide(call.of_new(call.value)).abs().sum(-1)


@dataclass(frozen=True)
class Marked(KeyNote):
    """Whether a key is one of the tokens `ids`: 1 or 0."""

    ids: tuple[int, ...]

    def of_new(self, call: EvictionCall) -> Tensor:
        if call.ids is None:
            raise InputError("which tokens are meant shows in input_ids, and the model was given embeddings")
        found = torch.isin(call.ids, torch.tensor(self.ids, device=call.ids.device)).float()
        return found[:, None].expand(-1, call.key.shape[1], -1).to(call.key.device)


def weights_read(needs: Sequence[Note]) -> bool:
    """Whether any of these notes asks for attention weights."""
    return any(note.reads_weights for note in needs)
