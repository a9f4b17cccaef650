"""The attention weights of a call, a few rows at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.probes.calls.arithmetic import in_bits
from sinkscope.probes.calls.call import AttentionCall
from sinkscope.probes.calls.row_scores import RowScores

EPSILON = 1e-8  # of the renormalisation, as in the paper's code


@dataclass(frozen=True, eq=False)
class Chunk:
    """Weights, in fp32, of the queries `rows` of `samples` on the keys `columns`; every key outside has weight 0.

    Rows of queries that do not count (padding) are 0. `slots`: weights on slots, where there are any; in a softmax one
    column for all of them together, and one for each entry that is no token. `row_scores`: what the scores tell, where
    an observer asked for it and the layer is a softmax over tokens and slots alone. The next chunk may be written over
    this one: what is kept of it has to be a copy.
    """

    samples: slice
    rows: slice
    columns: slice
    weights: Float[Tensor, "batch heads query key"]
    slots: Float[Tensor, "batch heads query slots"] | None = None
    row_scores: RowScores | None = None


def chunks(call: AttentionCall, with_scores: bool = False) -> Iterator[Chunk]:
    """All weights of a call, in O(chunk) memory and O(T²) arithmetic.

    Softmax: exp(score − lse), the weights that the layer used. Other operations: theirs, row by row renormalized to
    |w| / (Σ|w| + 1e-8) where `metric_weights` says so. Weights that the model returned come in one piece.
    """
    if call.collected is not None:
        batch, _, queries, keys = call.collected.shape
        yield Chunk(slice(0, batch), slice(0, queries), slice(0, keys), call.collected)
    else:
        yield from _from_scores(call, with_scores) if call.is_softmax else _from_operation(call)


def _from_scores(call: AttentionCall, with_scores: bool) -> Iterator[Chunk]:
    lse = call.counted_lse[..., None]
    room = call.query.new_empty(0, 0, dtype=torch.float32)
    slots = None if call.sink is None else (call.sink.expand(lse.shape[:3])[..., None] - lse).exp()
    for samples, rows in reversed(list(call.parts())):  # in causal layers the largest chunk is the last
        columns = call.mask.extent(samples, rows)
        if columns.start < columns.stop:
            # Fresh memory for each chunk would cost a quarter of the time.
            need = call.heads * math.prod(part.stop - part.start for part in (samples, rows, columns))
            if room.shape[1] < need:
                room = room.new_empty(2 if with_scores else 1, need)
            slot = None if slots is None else slots[samples, :, rows]
            if with_scores and call.entries is None:
                yield _with_scores(call, samples, rows, columns, slot, room[:, :need])
                continue
            weights = call.weights(samples, rows, columns, room[0, :need])
            if call.entries is not None:
                entries = call.entry_scores(samples, rows).sub_(lse[samples, :, rows]).exp_()
                slot = entries if slot is None else torch.cat([slot, entries], -1)
            yield Chunk(samples, rows, columns, weights, slot)


def _with_scores(
    call: AttentionCall,
    samples: slice,
    rows: slice,
    columns: slice,
    slot: Tensor | None,
    room: Float[Tensor, "rooms _"],
) -> Chunk:
    """Weights, and what the scores tell while they are at hand; the logarithms of the weights take their place."""
    hidden: Tensor | None = None
    if call.is_product:
        scores = call.products(samples, rows, columns, room[0])
    else:
        scores = call.scores(samples, rows, columns)
        hidden = scores == -torch.inf

    def blank(values: Tensor) -> None:
        if hidden is None:
            call.mask.blank(values, samples, rows, columns)
        else:
            values.masked_fill_(hidden, 0.0)

    blank(scores)
    largest = torch.maximum(scores.amax(-1), -scores.amin(-1))
    bits = in_bits(scores, call.shift[samples, :, rows, None])
    weights = torch.exp2(bits, out=room[1].view(bits.shape))
    blank(weights)
    return Chunk(
        samples, rows, columns, weights, slot, RowScores(call, (samples, rows, columns), weights, bits, largest)
    )


def _from_operation(call: AttentionCall) -> Iterator[Chunk]:
    operation = call.operation
    assert operation is not None
    for rows in call.row_parts():
        found = call.operation_weights(rows)
        token, slot = found.token, found.slot
        if operation.spec.metric_weights == "renormalized":
            total = token.abs().sum(-1, keepdim=True) + slot.abs().sum(-1, keepdim=True) + EPSILON
            token, slot = token.abs() / total, slot.abs() / total
        if call.real is not None:
            ignored = ~call.real[:, None, rows, None]
            token, slot = token.masked_fill(ignored, 0.0), slot.masked_fill(ignored, 0.0)
        yield Chunk(slice(0, len(token)), rows, slice(0, token.shape[-1]), token, slot if slot.shape[-1] else None)
