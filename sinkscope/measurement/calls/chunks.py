"""The attention weights of a call, a few rows at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.measurement.calls.arithmetic import in_bits
from sinkscope.measurement.calls.call import AttentionCall
from sinkscope.measurement.calls.row_scores import RowScores, Where

EPSILON = 1e-8  # of the renormalisation, as in the paper's code


@dataclass(frozen=True, eq=False)
class Chunk:
    """Weights, in fp32, of the queries `rows` of `samples` on the keys `columns`; every key outside has weight 0.

    Rows of queries that do not count (padding) are 0. `slots`: weights on slots, where there are any; in a softmax one
    column for all of them together, and one for each entry that is no token. The next chunk may be written over this
    one: what is kept of it has to be a copy.
    """

    samples: slice
    rows: slice
    columns: slice
    weights: Float[Tensor, "batch heads query key"]
    slots: Float[Tensor, "batch heads query slots"] | None = None


def has_scores(call: AttentionCall) -> bool:
    """Whether a call is a softmax of known scores over tokens and slots alone, of which `RowScores` tell."""
    return call.is_softmax and call.entries is None


def chunks(call: AttentionCall, told: RowScores | None = None) -> Iterator[Chunk]:
    """All weights of a call, in O(chunk) memory and O(T²) arithmetic. `told` is filled on the way, if it `has_scores`.

    Softmax: exp(score − lse), the weights that the layer used. Other operations: theirs, row by row renormalized to
    |w| / (Σ|w| + 1e-8) where `metric_weights` says so. Weights that the model returned come in one piece.
    """
    if call.collected is not None:
        batch, _, queries, keys = call.collected.shape
        yield Chunk(slice(0, batch), slice(0, queries), slice(0, keys), call.collected)
    else:
        yield from _from_scores(call, told if has_scores(call) else None) if call.is_softmax else _from_operation(call)


def _from_scores(call: AttentionCall, told: RowScores | None) -> Iterator[Chunk]:
    lse = call.counted_lse[..., None]
    slots = None if call.sink is None else (call.sink.expand(lse.shape[:3])[..., None] - lse).exp()
    parts = [(samples, rows, call.mask.extent(samples, rows)) for samples, rows in call.parts()]
    sizes = [call.heads * math.prod(part.stop - part.start for part in where) for where in parts]
    # Fresh memory for each chunk would cost a quarter of the time.
    room = call.query.new_empty(1 if told is None else 2, max(sizes, default=0), dtype=torch.float32)
    for (samples, rows, columns), need in zip(reversed(parts), reversed(sizes), strict=True):
        if need:  # the last rows first: in causal layers they see most keys, and no sum has to grow
            slot = None if slots is None else slots[samples, :, rows]
            if told is not None:
                yield _with_scores(told, (samples, rows, columns), slot, room[:, :need])
                continue
            weights = call.weights(samples, rows, columns, room[0, :need])
            if call.entries is not None:
                entries = call.entry_scores(samples, rows).sub_(lse[samples, :, rows]).exp_()
                slot = entries if slot is None else torch.cat([slot, entries], -1)
            yield Chunk(samples, rows, columns, weights, slot)


def _with_scores(told: RowScores, where: Where, slot: Tensor | None, room: Float[Tensor, "rooms _"]) -> Chunk:
    """Weights, and what the scores tell while they are at hand; the logarithms of the weights take their place."""
    call, (samples, rows, columns) = told.call, where
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
    told.take_scores(where, scores)
    bits = in_bits(scores, call.shift[samples, :, rows, None])
    weights = torch.exp2(bits, out=room[1].view(bits.shape))
    blank(weights)
    told.take_weights(where, weights, bits)
    return Chunk(samples, rows, columns, weights, slot)


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
