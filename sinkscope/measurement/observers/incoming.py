"""Which key has a query's largest weight, key by key: Kaul et al. 2024; Yu et al. 2024."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sinkscope.measurement.calls.call import AttentionCall
from sinkscope.measurement.calls.chunks import Chunk
from sinkscope.measurement.observers.observer import Array, LayerSums, Piece, WeightsObserver, divide, in_every


@in_every
@dataclass(frozen=True)
class IncomingAttention(WeightsObserver):
    """`most_attended` (sample, layer, head, position): over the real queries that see key k, the share whose largest
    weight is on k; the first key of a tie counts, and none if a slot has more.

    Source: Kaul et al. 2024, section 2 (there for the first key). Cost: a pass over the weights in chunks; O(T²) time,
    O(T) memory.
    """

    def on_chunk(self, call: AttentionCall, chunk: Chunk) -> Iterable[Piece]:
        weights = chunk.weights
        column = _strongest(weights)
        votes = weights.new_zeros(*weights.shape[:2], weights.shape[3])
        votes.scatter_add_(-1, column, _voting(call, chunk, column).to(weights.dtype))
        yield Piece("votes", votes, call.key_start + chunk.columns.start, chunk.samples)

    def arrays(self, layer: LayerSums) -> dict[str, Array]:
        if (votes := layer.sums.get("votes")) is None:
            return {}
        return {"most_attended": Array(divide(votes, layer.visible_queries), "key")}


def _strongest(weights: Tensor) -> Tensor:
    """Column of each row's largest weight, the first of a tie; on the CPU numpy takes a fifth of torch's time."""
    if weights.device.type != "cpu":
        return weights.argmax(-1)
    return torch.from_numpy(np.asarray(weights.numpy().argmax(-1)))


def _voting(call: AttentionCall, chunk: Chunk, column: Tensor) -> Tensor:
    """Whether a row's largest weight is on a token: not for rows that do not count, nor if a slot has more."""
    # A row of zeros has an argmax too, its first key. In a softmax such rows are those that do not count.
    if call.is_softmax and chunk.slots is None:
        return call.counted[chunk.samples, :, chunk.rows]
    largest = chunk.weights.gather(-1, column[..., None])[..., 0]
    voting = largest > 0
    return voting if chunk.slots is None else voting & (largest >= chunk.slots.amax(-1))
