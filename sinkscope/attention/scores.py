"""The logits of one attention map, a few rows at a time: similarity, temperature, forgetting, bias, slots."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkscope.attention.context import Bias
from sinkscope.attention.similarity import dot_product
from sinkscope.attention.slots import SlotTerms
from sinkscope.attention.visibility import Visibility


@dataclass(frozen=True, eq=False)
class ScoreRows:
    """Scores on slots (first) and tokens `keys`, which of them are visible, and how many tokens each query sees."""

    scores: Float[Tensor, "batch heads query column"]
    visible: Bool[Tensor, "#batch 1 query column"]
    count: Float[Tensor, "#batch 1 query 1"]
    keys: slice


@dataclass(frozen=True, eq=False)
class Scores:
    """What all rows share: features of queries and keys in fp32 at least, slots, and what is added.

    `decay`: c of queries and of keys; a score gains −|c_t − c_k|, which is c_t − c_k for keys before the query.
    """

    query: Float[Tensor, "batch heads query dim"]
    key: Float[Tensor, "batch kv_heads key dim"]
    scaling: float
    visibility: Visibility
    slots: tuple[SlotTerms, ...] = ()
    decay: tuple[Float[Tensor, "batch heads query"], Float[Tensor, "batch heads key"]] | None = None
    bias: Bias | None = None

    def rows(self, rows: slice) -> ScoreRows:
        """The rows of these queries, on the keys within their reach."""
        keys = self.visibility.reach(rows)
        query = self.query[:, :, rows]
        scores = dot_product(query, self.key[:, :, keys], self.scaling)
        if self.decay is not None:
            # Subtracted in the sums' own precision, and rounded after: two large sums would cancel to noise in fp32.
            between = self.decay[0][:, :, rows, None] - self.decay[1][:, :, None, keys]
            scores = scores - between.abs().to(scores.dtype)
        if self.bias is not None:
            scores = scores + self.bias.rows(rows)[..., keys].to(scores.dtype)
        visible = self.visibility.upto(keys).dense(rows)
        # Before slots are added: the n of length-dependent operations counts tokens, not slots.
        count = visible.sum(-1, keepdim=True).clamp(min=1).to(scores.dtype)
        if self.slots:
            scores = torch.cat([self.slot_logits(rows), scores], -1)
            awake = visible.any(-1, keepdim=True)  # a query that sees no token sees no slot: its row stays empty
            visible = torch.cat([awake.expand(*awake.shape[:3], len(self.slots)), visible], -1)
        return ScoreRows(scores, visible, count, keys)

    def slot_logits(self, rows: slice) -> Float[Tensor, "batch heads query slots"]:
        """scaling · q·k* + b of every slot."""
        query = self.query[:, :, rows]
        return torch.stack([_slot_logit(terms, query, rows, self.scaling) for terms in self.slots], -1)


def per_query_head(parameter: Float[Tensor, "kv_heads dim"], like: Tensor) -> Float[Tensor, "heads dim"]:
    """One row per query head from one per key-value head, in the dtype of `like` (batch, heads, …)."""
    return parameter.to(like.dtype).repeat_interleave(like.shape[1] // parameter.shape[0], 0)


def wide(tensor: Tensor) -> Tensor:
    """In fp32 at least; float64 stays. (A row of bf16 weights sums to one only within 2e-3.)"""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _slot_logit(terms: SlotTerms, query: Tensor, rows: slice, scaling: float) -> Tensor:
    # A slot without key and logit keeps score 0: it still adds exp(0) = 1 to the denominator, which is off-by-one.
    logits = query.new_zeros(query.shape[:3])
    if terms.key is not None:
        logits = logits + scaling * (query * per_query_head(terms.key, query).unsqueeze(1)).sum(-1)
    if terms.logit is not None:
        logit = terms.logit.to(query.dtype)
        logits = logits + (logit[:, None] if logit.ndim == 1 else logit[..., rows])
    return logits
