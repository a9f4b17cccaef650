"""What keys receive beyond the mean: the largest weight, the votes, and what uniform attention would give.

Source: Gu et al. 2025, section 3; Sun et al. 2024; Yu et al. 2024.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn import functional as F

from sinkscope.probes.calls.call import AttentionCall
from sinkscope.probes.calls.chunks import Chunk
from sinkscope.probes.calls.masks import Rule
from sinkscope.probes.calls.moments import is_plain, seen_by_plain
from sinkscope.probes.observers.observer import Array, LayerSums, Piece, WeightsObserver, divide, in_every


@in_every
@dataclass(frozen=True)
class IncomingAttention(WeightsObserver):
    """Per key k, over the real queries t that see it:

    `attention_peak` (sample, layer, head, position): max_t A[t, k], with the weights that the sink rate reads.
    `most_attended` (sample, layer, head, position): share of these queries whose largest weight is on k; the first key
        of a tie has it, and none where a slot has more. Source: Kaul et al. 2024, section 2 (there for the first key).
    `uniform_received` (sample, layer, position): the alpha_k that uniform attention over each query's visible tokens
        would give, Σ_t [t sees k] / n_t / (T − k) (/ T in bidirectional layers), under the layer's own mask: windows,
        padding, prefixes. Slots are left out. Where the mask differs between heads, their mean. Of families whose mask
        is not known, only their weights, a key is visible where any head gives it weight.

    Cost: two passes over the weights in chunks, one over the mask where that is no plain triangle; O(T²) time, O(T)
    memory.
    """

    def on_chunk(self, call: AttentionCall, chunk: Chunk) -> Iterable[Piece]:
        start = call.key_start + chunk.columns.start
        weights = chunk.weights
        column = _strongest(weights)
        votes = weights.new_zeros(*weights.shape[:2], weights.shape[3])
        votes.scatter_add_(-1, column, _voting(call, chunk, column).to(weights.dtype))
        yield Piece("peak", weights.amax(-2), start, chunk.samples, "max")
        yield Piece("votes", votes, start, chunk.samples)

    def on_call(self, call: AttentionCall) -> Iterable[Piece]:
        if call.collected is None and call.real is None and is_plain(call):
            yield from _by_the_triangle(call)
            return
        nothing = call.query.new_zeros(len(call.query), 1, call.mask.keys, dtype=torch.float32)
        yield Piece("seen", nothing, call.key_start)
        yield Piece("uniform", nothing, call.key_start)
        for samples, rows in call.parts():
            columns = call.mask.extent(samples, rows)
            visible = _visible(call, samples, rows, columns)
            if call.real is not None:
                visible = visible & call.real[samples, None, rows, None]
            counts = visible.sum(-1, keepdim=True).clamp(min=1)
            start, size = call.key_start + columns.start, samples.stop - samples.start
            seen = visible.any(1, keepdim=True).sum(-2).float()
            uniform = (visible / counts).sum(-2).mean(1, keepdim=True)
            yield Piece("seen", seen.expand(size, -1, -1), start, samples)
            yield Piece("uniform", uniform.expand(size, -1, -1), start, samples)

    def arrays(self, found: LayerSums) -> dict[str, Array]:
        if "seen" not in found.sums:
            return {}
        seen = found.sums["seen"]
        uniform = divide(found.sums["uniform"], found.queries_per_key[:, None])
        peak = _as_wide(found.sums["peak"], seen).where(seen > 0, torch.nan)
        return {
            "attention_peak": Array(peak, "key"),
            "most_attended": Array(divide(found.sums["votes"], seen), "key"),
            "uniform_received": Array(uniform, "key", per_head=False),
        }


def _by_the_triangle(call: AttentionCall) -> Iterable[Piece]:
    """Σ_t over the queries that see a key, of 1 and of 1 / n_t: sums from the last query backwards."""
    queries, keys = call.query.shape[2], call.mask.keys
    counts = seen_by_plain(call, slice(0, queries))
    shares = counts.clamp(min=1).double().reciprocal()
    assert isinstance(call.mask, Rule)
    start = call.mask.start if call.mask.causal else keys  # of the keys that not every query sees
    for name, values in (("seen", torch.ones_like(shares)), ("uniform", shares)):
        later = values.flip(0).cumsum(0).flip(0)
        sums = torch.cat([later[:1].expand(min(start, keys)), later[: max(0, keys - start)]])
        yield Piece(name, sums.float().expand(len(call.query), 1, -1), call.key_start)


def _strongest(weights: Tensor) -> Tensor:
    """Column of each row's largest weight, the first of a tie; on the CPU numpy takes a fifth of torch's time."""
    if weights.device.type != "cpu":
        return weights.argmax(-1)
    return torch.from_numpy(np.asarray(weights.numpy().argmax(-1)))


def _voting(call: AttentionCall, chunk: Chunk, column: Tensor) -> Tensor:
    """Whether a row's largest weight is one: rows that do not count have none, nor those of which a slot has more."""
    if call.is_softmax and chunk.slots is None:
        return call.counted[chunk.samples, :, chunk.rows]
    largest = chunk.weights.gather(-1, column[..., None])[..., 0]
    voting = largest > 0
    return voting if chunk.slots is None else voting & (largest >= chunk.slots.amax(-1))


def _visible(call: AttentionCall, samples: slice, rows: slice, columns: slice) -> Bool[Tensor, "_ _ query key"]:
    if call.collected is not None:
        return (call.collected[samples, :, rows, columns] > 0).any(1, keepdim=True)
    return call.mask.visible(samples, rows, columns).to(call.query.device)


def _as_wide(peak: Tensor, seen: Tensor) -> Tensor:
    """Keys behind the last one that any chunk held received nothing."""
    return F.pad(peak, (0, seen.shape[-1] - peak.shape[-1]), value=-torch.inf)
