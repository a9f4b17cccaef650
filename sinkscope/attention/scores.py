"""The logits of one attention map, a few rows at a time: similarity, temperature, forgetting, bias, slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from sinkscope.attention.context import Bias
from sinkscope.attention.pieces import Learned, OpenTo, Sizes, piece
from sinkscope.attention.pieces import Similarity as SimilarityPiece
from sinkscope.attention.scoring.decay import Forgotten
from sinkscope.attention.slots import SlotTerms
from sinkscope.attention.visibility import Visibility

# From queries and keys to scores: s_tk = scaling · φ(q_t)·φ(k_k), with a feature map φ or without one.
#
# Feature maps act after rotation, as in the paper's code (lit_gpt/model_attn_kernel.py): positions enter
# through φ(R q).


@piece
class DotProduct:
    """φ(x) = x: s_tk = scaling · q_t·k_k. Source: Vaswani et al. 2017."""

    kind: Literal["dot_product"] = "dot_product"

    def build(self, sizes: Sizes) -> nn.Module:
        return nn.Identity()


@piece
class Kernel:
    """A feature map on queries and keys. Source: Gu et al. 2025, Tables 6 and 15; Katharopoulos et al. 2020.

    "elu": φ(x) = elu(x) + 1, positive. "mlp": φ(x) = W₂ relu(W₁ x), two learned (head_dim, head_dim) maps without bias,
    the same for queries and keys and for all heads of a layer, N(0, 2 / (5 · head_dim)) at the start. Acting after
    rotation it is not shift invariant: under left padding give `position_ids` that count real tokens.
    """

    feature: Literal["elu", "mlp"]
    kind: Literal["kernel"] = "kernel"

    def build(self, sizes: Sizes) -> nn.Module:
        return _EluPlusOne() if self.feature == "elu" else _FeatureMlp(sizes.head_dim)


BuiltIn = DotProduct | Kernel
Similarity = Annotated[BuiltIn | SimilarityPiece, OpenTo("similarity", BuiltIn, SimilarityPiece)]


def dot_product(
    query: Float[Tensor, "batch heads query dim"], key: Float[Tensor, "batch kv_heads key dim"], scaling: float
) -> Float[Tensor, "batch heads query key"]:
    """scaling · q·k; grouped queries meet the key head of their group without a copy of the keys."""
    batch, heads, queries, dim = query.shape
    kv_heads, keys = key.shape[1:3]
    # (batch, kv_heads, group · query, dim): heads of a group are adjacent, h = kv_head · group + member.
    grouped = query.reshape(batch, kv_heads, heads // kv_heads * queries, dim)
    # `*` and `@` bind alike, from the left: the queries are scaled, not the query × key scores.
    return (scaling * grouped @ key.transpose(-1, -2)).view(batch, heads, queries, keys)


class _EluPlusOne(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.elu(x) + 1


class _FeatureMlp(Learned):
    maps = ("first", "second")

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.empty(width, width))
        self.second = nn.Parameter(torch.empty(width, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in (self.first, self.second):
            nn.init.normal_(weight, std=(2 / (5 * weight.shape[1])) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.relu(F.linear(x, self.first.to(x.dtype))), self.second.to(x.dtype))


@dataclass(frozen=True, eq=False)
class ScoreRows:
    """Scores on slots (first) and tokens `keys`, which of them are visible, and how many tokens each query sees."""

    scores: Float[Tensor, "batch heads query column"]
    visible: Bool[Tensor, "#batch #heads query column"]
    count: Float[Tensor, "#batch #heads query 1"]
    keys: slice


@dataclass(frozen=True, eq=False)
class MapScores:
    """What all rows share: features of queries and keys in fp32 at least, slots, and added terms.

    `decay`: what forgetting subtracts from scores.
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
            # (heads, slots, dim): one product for all slots with keys
            keys = torch.stack([per_query_head(widened(key, query), query) for key in keyed.values()], 1)
            for index, products in zip(keyed, (self.scaling * query @ keys.mT).unbind(-1), strict=True):
                columns[index] = products
        for index, terms in enumerate(self.slots):
            if terms.logit is not None:
                logit = terms.logit.to(query.dtype)
                # Not `+=`: columns without a key are one shared tensor. Logits are (heads) or (#batch, heads, query).
                columns[index] = columns[index] + (logit[:, None] if logit.ndim == 1 else logit[..., rows])
        return torch.stack(columns, -1)


def per_query_head(parameter: Float[Tensor, "kv_heads dim"], like: Tensor) -> Float[Tensor, "heads dim"]:
    """One row per query head from one per key-value head, in the dtype of `like` (batch, heads, …)."""
    return parameter.to(like.dtype).repeat_interleave(like.shape[1] // parameter.shape[0], 0)


def widened(key: Float[Tensor, "kv_heads dim"], like: Tensor) -> Float[Tensor, "kv_heads wider"]:
    """A slot's key, zero-padded to channels that other pieces added to queries."""
    return F.pad(key, (0, like.shape[-1] - key.shape[-1]))


def wide(tensor: Tensor) -> Tensor:
    """In fp32 at least; float64 stays. (A row of bf16 weights sums to one only within 2e-3.)"""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def aggregated(
    token: Float[Tensor, "batch heads query key"],
    slot: Float[Tensor, "batch heads query slots"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    terms: Sequence[SlotTerms],
) -> Float[Tensor, "batch heads query value_dim"]:
    """Σ_k w_tk v_k with grouped heads, plus the slots' values."""
    batch, heads, queries, keys = token.shape
    kv_heads = value.shape[1]
    # The group's queries are stacked instead of repeating values for each query head, which would copy them.
    grouped = token.reshape(batch, kv_heads, heads // kv_heads * queries, keys)
    output = (grouped @ value).view(batch, heads, queries, value.shape[-1])
    valued = {index: each.value for index, each in enumerate(terms) if each.value is not None}
    if valued:
        values = torch.stack([per_query_head(each, output) for each in valued.values()], 1)  # (heads, slots, value_dim)
        output = output + slot[..., list(valued)] @ values
    return output
