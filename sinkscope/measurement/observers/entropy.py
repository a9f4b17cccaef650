"""Entropy of attention rows, and its lower bound from the logits (Zhai et al. 2023)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.measurement.calls.call import AttentionCall
from sinkscope.measurement.calls.chunks import Chunk, RowKind, RowScores, has_scores, is_linear, linear_spread
from sinkscope.measurement.observers.observer import Array, LayerSums, Piece, WeightsObserver, divide, in_every


@in_every
@dataclass(frozen=True)
class AttentionEntropy(WeightsObserver):
    """Ent_t = −Σ_k A[t, k] log A[t, k] in nats, averaged over real queries that see anything: `attention_entropy`.

    (sample, layer, head). A slot or a learned sink is one more outcome (several together are one in a softmax). Rows of
    operations without a softmax: |w| over tokens and slots, divided by its sum; rows that are all zero do not count.

    `entropy_bound`: the same mean of `entropy_bound(σ_t, n_t)`, with n_t the number of the row's visible logits,
    including the sink's, and σ_t the norm of these logits minus their mean; softmax layers only. It is never above the
    entropy. Source: Zhai et al. 2023, Theorem 3.1, there with σ an upper bound for all rows and n = T.

    Cost: two cheap passes over the weights in chunks, with windows, padding, softcaps or biases five; O(T²) time, O(T)
    memory.
    """

    @property
    def reads_rows(self) -> Collection[RowKind]:
        return ("entropy", "spread")

    def on_chunk(self, call: AttentionCall, chunk: Chunk) -> Iterable[Piece]:
        return () if has_scores(call) else _of_weights(chunk)

    def on_rows(self, call: AttentionCall, row_scores: RowScores) -> Iterable[Piece]:
        if row_scores.spread is not None:
            yield Piece("bound", entropy_bound(*row_scores.spread).where(call.counted, 0.0).sum(-1))
        yield Piece("entropy", row_scores.entropy.sum(-1))

    def on_call(self, call: AttentionCall) -> Iterable[Piece]:
        if has_scores(call):
            yield Piece("rows", call.counted.sum(-1).float())
        if is_linear(call):
            bound = entropy_bound(*linear_spread(call))
            yield Piece("bound", bound.where(call.counted, 0.0).sum(-1))

    def arrays(self, layer: LayerSums) -> dict[str, Array]:
        names = {"entropy": "attention_entropy", "bound": "entropy_bound"}
        rows = layer.sums.get("rows")
        if rows is None:
            return {}
        return {names[name]: Array(divide(sums, rows), None) for name, sums in layer.sums.items() if name in names}


def entropy_bound(spread: Float[Tensor, "*rows"], count: Float[Tensor, "*#rows"]) -> Float[Tensor, "*rows"]:
    """log(1 + (n − 1) b) + σ √(n (n − 1)) b / (1 + (n − 1) b),  b = exp(−σ √(n / (n − 1))): the least entropy, in nats.

    `spread`: σ, the l2 norm of a row's centered logits; `count`: n, their number. 0 for n = 1, log n for σ = 0; it is
    reached by one logit above n − 1 equal ones. Source: Zhai et al. 2023, Theorem 3.1.
    """
    others = count - 1
    rest = others * torch.exp(-spread * (count / others.clamp(min=1)).sqrt())
    # The second term's √(n (n − 1)) b is √(n / (n − 1)) · rest, which is 0 for n = 1.
    return torch.log1p(rest) + spread * (count / others.clamp(min=1)).sqrt() * rest / (1 + rest)


def _of_weights(chunk: Chunk) -> Iterable[Piece]:
    """log Σ|w| − Σ |w| log|w| / Σ|w|: the entropy of |w| / Σ|w|."""
    parts = [chunk.weights.abs()] + ([] if chunk.slots is None else [chunk.slots.abs()])
    total = torch.stack([part.sum(-1) for part in parts]).sum(0)
    of_keys = torch.stack([torch.special.entr(part).sum(-1) for part in parts]).sum(0)
    counted = total != 0
    entropy = (total.log() + of_keys / total).clamp(min=0).where(counted, 0.0)
    yield Piece("entropy", entropy.sum(-1), None, chunk.samples)
    yield Piece("rows", counted.sum(-1).float(), None, chunk.samples)
