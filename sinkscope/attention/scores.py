"""The logits of one attention map, a few rows at a time: similarity, temperature, forgetting, bias, slots."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from sinkscope.attention.context import Bias
from sinkscope.attention.scoring.decay import Forgotten
from sinkscope.attention.scoring.similarity import dot_product
from sinkscope.attention.slots import SlotTerms
from sinkscope.attention.visibility import Visibility


@dataclass(frozen=True, eq=False)
class ScoreRows:
    """Scores on slots (first) and tokens `keys`, which of them are visible, and how many tokens each query sees."""

    scores: Float[Tensor, "batch heads query column"]
    visible: Bool[Tensor, "#batch #heads query column"]
    count: Float[Tensor, "#batch #heads query 1"]
    keys: slice


@dataclass(frozen=True, eq=False)
class Scores:
    """What all rows share: features of queries and keys in fp32 at least, slots, and what is added.

    `decay`: what forgetting takes from scores.
    """

    query: Float[Tensor, "batch heads query dim"]
    key: Float[Tensor, "batch kv_heads key dim"]
    scaling: float
    visibility: Visibility
    slots: tuple[SlotTerms, ...] = ()
    decay: Forgotten | None = None
    bias: Bias | None = None

    def rows(self, rows: slice) -> ScoreRows:
        """The rows of these queries, on the keys within their reach."""
        keys = self.visibility.reach(rows)
        query = self.query[:, :, rows]
        scores = dot_product(query, self.key[:, :, keys], self.scaling)
        if self.decay is not None:
            # Subtracted in the sums' own precision, and rounded after: two large sums would cancel to noise in fp32.
            scores = scores + self.decay.rows(rows, keys).to(scores.dtype)
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
        # A slot without key and logit keeps score 0: it still adds exp(0) = 1 to the denominator: off-by-one.
        columns = [query.new_zeros(query.shape[:3])] * len(self.slots)
        keyed = {index: terms.key for index, terms in enumerate(self.slots) if terms.key is not None}
        if keyed:
            keys = torch.stack([per_query_head(widened(key, query), query) for key in keyed.values()], 1)
            for index, products in zip(keyed, (self.scaling * query @ keys.mT).unbind(-1), strict=True):
                columns[index] = products
        for index, terms in enumerate(self.slots):
            if terms.logit is not None:
                logit = terms.logit.to(query.dtype)
                columns[index] = columns[index] + (logit[:, None] if logit.ndim == 1 else logit[..., rows])
        return torch.stack(columns, -1)


def per_query_head(parameter: Float[Tensor, "kv_heads dim"], like: Tensor) -> Float[Tensor, "heads dim"]:
    """One row per query head from one per key-value head, in the dtype of `like` (batch, heads, …)."""
    return parameter.to(like.dtype).repeat_interleave(like.shape[1] // parameter.shape[0], 0)


def widened(key: Float[Tensor, "kv_heads dim"], like: Tensor) -> Float[Tensor, "kv_heads wider"]:
    """A slot's key with zeros for the channels that something else added to queries."""
    return F.pad(key, (0, like.shape[-1] - key.shape[-1]))


def wide(tensor: Tensor) -> Tensor:
    """In fp32 at least; float64 stays. (A row of bf16 weights sums to one only within 2e-3.)"""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
