"""Entropy of attention rows, and the lower bound that their logits set (Zhai et al. 2023)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.probes.calls.call import AttentionCall
from sinkscope.probes.calls.chunks import Chunk
from sinkscope.probes.calls.moments import is_linear, linear_spread, seen_by_plain
from sinkscope.probes.observers.observer import Array, LayerSums, Piece, WeightsObserver, divide, in_every


@in_every
@dataclass(frozen=True)
class AttentionEntropy(WeightsObserver):
    """Ent_t = −Σ_k A[t, k] log A[t, k] in nats, averaged over real queries that see anything: `attention_entropy`.

    (sample, layer, head). A slot or a learned sink is one more outcome (several together are one in a softmax). Rows of
    operations without a softmax: |w| over tokens and slots, divided by its sum; rows that are all zero count nowhere.

    `entropy_bound`: the same mean of `entropy_bound(σ_t, n_t)`, n_t the visible logits of the row, the sink's among
    them, and σ_t the norm of these logits after taking off their mean; softmax layers only. It is never above the
    entropy. Source: Zhai et al. 2023, Theorem 3.1, there with σ an upper bound for all rows and n = T.

    Cost: two cheap passes over the scores in chunks, with windows, padding, softcaps or biases five; O(T²) time, O(T)
    memory.
    """

    @property
    def reads_scores(self) -> bool:
        return True

    def on_chunk(self, call: AttentionCall, chunk: Chunk) -> Iterable[Piece]:
        return _of_weights(chunk) if chunk.scores is None else _of_scores(call, chunk, chunk.scores)

    def on_call(self, call: AttentionCall) -> Iterable[Piece]:
        if is_linear(call):
            counted = call.counted_lse != torch.inf
            bound = entropy_bound(*linear_spread(call))
            yield Piece("bound", bound.where(counted, 0.0).sum(-1))

    def arrays(self, found: LayerSums) -> dict[str, Array]:
        names = {"entropy": "attention_entropy", "bound": "entropy_bound"}
        rows = found.sums.get("rows")
        if rows is None:
            return {}
        return {names[name]: Array(divide(sums, rows), None) for name, sums in found.sums.items() if name in names}


def entropy_bound(spread: Float[Tensor, "*rows"], count: Float[Tensor, "*#rows"]) -> Float[Tensor, "*rows"]:
    """log(1 + (n − 1) b) + σ √(n (n − 1)) b / (1 + (n − 1) b),  b = exp(−σ √(n / (n − 1))): the least entropy, in nats.

    `spread`: σ, the l2 norm of a row's centered logits; `count`: n, how many they are. 0 for n = 1, log n for σ = 0; it
    is reached by one logit above n − 1 equal ones. Source: Zhai et al. 2023, Theorem 3.1.
    """
    others = count - 1
    rest = others * torch.exp(-spread * (count / others.clamp(min=1)).sqrt())
    # The second term's √(n (n − 1)) b is √(n / (n − 1)) · rest, which is 0 for n = 1.
    return torch.log1p(rest) + spread * (count / others.clamp(min=1)).sqrt() * rest / (1 + rest)


def _of_scores(call: AttentionCall, chunk: Chunk, scores: Tensor) -> Iterable[Piece]:
    """From log A = s − lse, in logits d = s − (lse − log n): Ent = log n − Σ A d, and σ² = Σ d² − (Σ d)² / n.

    Taking lse − log n off instead of nothing leaves the digits where they matter: it is the mean of flat rows.
    """
    samples, rows = chunk.samples, chunk.rows
    lse = call.counted_lse[samples, :, rows]
    counted = lse != torch.inf
    linear = is_linear(call)
    if linear and call.sink is None:
        # Σ A (lse − s). The difference comes first: two sums as large as lse would leave few digits of their own.
        below = torch.sub(scores, lse.where(counted, 0.0)[..., None], out=chunk.spare)
        entropy = -below.mul_(chunk.weights).sum(-1)
        yield Piece("entropy", entropy.clamp(min=0).where(counted, 0.0).sum(-1), None, samples)
        yield Piece("rows", counted.sum(-1).float(), None, samples)
        return
    visible = None if linear else call.mask.visible(samples, rows, chunk.columns).to(lse.device)
    sink = None if call.sink is None else call.sink.expand_as(call.lse)[samples, :, rows]
    slots = 0 if sink is None else (sink > -torch.inf).int()  # a slot without any mass is none
    seen = seen_by_plain(call, rows) if visible is None else visible.sum(-1)
    count = (seen + slots).clamp(min=1).float()
    offset = (lse - count.log()).where(counted, 0.0)
    logits = torch.sub(scores, offset[..., None], out=chunk.spare)
    if visible is not None:
        logits.masked_fill_(~visible, 0.0)
    mean = torch.linalg.vecdot(chunk.weights, logits)  # what is hidden has weight 0
    if sink is not None and chunk.slots is not None:
        sink = (sink - offset).where(sink > -torch.inf, 0.0)
        mean = mean + chunk.slots[..., 0] * sink
    yield Piece("entropy", (count.log() - mean).clamp(min=0).where(counted, 0.0).sum(-1), None, samples)
    yield Piece("rows", counted.sum(-1).float(), None, samples)
    if linear:
        return
    total, squares = logits.sum(-1), torch.linalg.vector_norm(logits, dim=-1).square()
    if sink is not None and chunk.slots is not None:
        total, squares = total + sink, squares + sink.square()
    spread = (squares - total.square() / count).clamp(min=0).sqrt()
    yield Piece("bound", entropy_bound(spread, count).where(counted, 0.0).sum(-1), None, samples)


def _of_weights(chunk: Chunk) -> Iterable[Piece]:
    """log Σ|w| − Σ |w| log|w| / Σ|w|: the entropy of |w| / Σ|w|."""
    parts = [chunk.weights.abs()] + ([] if chunk.slots is None else [chunk.slots.abs()])
    total = torch.stack([part.sum(-1) for part in parts]).sum(0)
    own = torch.stack([torch.special.entr(part).sum(-1) for part in parts]).sum(0)
    counted = total != 0
    entropy = (total.log() + own / total).clamp(min=0).where(counted, 0.0)
    yield Piece("entropy", entropy.sum(-1), None, chunk.samples)
    yield Piece("rows", counted.sum(-1).float(), None, chunk.samples)
