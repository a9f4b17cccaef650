"""The attention weights of a call, a few rows at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.probes.calls.arithmetic import shares
from sinkscope.probes.calls.call import AttentionCall

EPSILON = 1e-8  # of the renormalisation, as in the paper's code


@dataclass(frozen=True, eq=False)
class Chunk:
    """Weights, in fp32, of the queries `rows` of `samples` on the keys `columns`; every key outside has weight 0.

    Rows of queries that do not count (padding) are 0. `slots`: weights on slots, where there are any; in a softmax one
    column for all of them together, and one for each entry that is no token. `scores`: the logits behind the weights, 0
    where masked, where an observer asked for them and the layer is a softmax over tokens and slots alone; `spare`,
    beside them: memory of the same shape, for one observer's own use at a time. The next chunk may be written over this
    one: what is kept of it has to be a copy.
    """

    samples: slice
    rows: slice
    columns: slice
    weights: Float[Tensor, "batch heads query key"]
    slots: Float[Tensor, "batch heads query slots"] | None = None
    scores: Float[Tensor, "batch heads query key"] | None = None
    spare: Float[Tensor, "batch heads query key"] | None = None


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
                room = room.new_empty(3 if with_scores else 1, need)
            scores, weights = _scored(call, samples, rows, columns, lse[samples, :, rows], room[:, :need])
            slot = None if slots is None else slots[samples, :, rows]
            if call.entries is not None:
                entries = call.entry_scores(samples, rows).sub_(lse[samples, :, rows]).exp_()
                slot = entries if slot is None else torch.cat([slot, entries], -1)
            if not with_scores or call.entries is not None:
                yield Chunk(samples, rows, columns, weights, slot)
            else:
                yield Chunk(samples, rows, columns, weights, slot, scores, room[2, :need].view(scores.shape))


def _scored(
    call: AttentionCall, samples: slice, rows: slice, columns: slice, lse: Tensor, room: Float[Tensor, "rooms _"]
) -> tuple[Tensor, Tensor]:
    """Scores, 0 where masked, and weights; of one room the weights alone, in the place of the scores."""
    if not call.is_product:
        scores = call.scores(samples, rows, columns)
        if len(room) == 1:
            return scores, shares(scores, lse)
        weights = shares(scores, lse, room[1].view(scores.shape))
        return scores.masked_fill_(scores == -torch.inf, 0.0), weights
    scores = call.products(samples, rows, columns, room[0])
    weights = shares(scores, lse, scores if len(room) == 1 else room[1].view(scores.shape))
    call.mask.blank(weights, samples, rows, columns)
    if weights is not scores:
        call.mask.blank(scores, samples, rows, columns)
    return scores, weights


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
