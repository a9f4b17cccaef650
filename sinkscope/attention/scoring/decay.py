"""Forgetting: scores decay with the tokens between key and query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from sinkscope.attention.masks import separates_documents
from sinkscope.attention.outputs.gates import Openness, logit
from sinkscope.attention.pieces import Learned, Sizes, piece
from sinkscope.attention.visibility import Visibility
from sinkscope.errors import InputError


@piece
class ForgettingGate:
    """s_tk ← s_tk + Σ_{k < l ≤ t} log f_l with f_l = σ(w_h·x_l + b_h), x the block's input. Source: Lin et al. 2025.

    (Forgetting Transformer, 2503.02130.) `openness`: f at the start, where x = 0; w_h starts N(0, 0.02²). Every token
    carries log f in the cache beside its key. For a key after the query (bidirectional masks) the sum runs from the
    query to the key, which is ours. Sums run over real tokens, not over padding; under a document mask over the tokens
    of the query's document, which need not be contiguous (and over sink tokens, which come before every document).
    A key that a mask hides is still between the tokens around it. A boolean tensor does not say which tokens are real
    or which document they belong to, so it is refused.
    """

    openness: Openness = 0.5
    kind: Literal["forgetting_gate"] = "forgetting_gate"

    def build(self, sizes: Sizes) -> nn.Module:
        return _ForgettingGate(sizes, self.openness)


class _ForgettingGate(Learned):
    def __init__(self, sizes: Sizes, openness: float) -> None:
        super().__init__()
        self.kv_heads, self.openness = sizes.kv_heads, openness
        self.weight = nn.Parameter(torch.empty(sizes.heads, sizes.hidden_size))
        self.bias = nn.Parameter(torch.empty(sizes.heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)
        nn.init.constant_(self.bias, logit(self.openness))

    def forward(self, hidden: Float[Tensor, "batch key width"]) -> Float[Tensor, "batch kv_heads key group"]:
        """log f of every token, a channel for each query head of a group, in fp32 at least."""
        wide = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
        kept = F.logsigmoid(F.linear(wide, self.weight.to(wide.dtype), self.bias.to(wide.dtype)))
        # (batch, key, heads) to (batch, kv_heads, key, group): the layout in which caches store keys.
        return kept.unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)


@dataclass(frozen=True, eq=False)
class Forgotten:
    """What scores lose to forgetting: from c_k = Σ_{l ≤ k} log f_l of every key, in fp64; queries are the last keys."""

    total: Float[Tensor, "batch heads key"]
    queries: int

    def rows(self, rows: slice, keys: slice) -> Float[Tensor, "batch heads query key"]:
        """−|Σ log f| between the queries in `rows` and these keys."""
        # c never rises, since log f ≤ 0: −|c_q − c_k| is the sum between q and k, whichever comes first.
        queries = self.total[:, :, self.total.shape[2] - self.queries :]
        return (queries[:, :, rows, None] - self.total[:, :, None, keys]).abs().neg()


def forgotten(carried: Float[Tensor, "batch kv_heads key group"], visibility: Visibility) -> Forgotten:
    """The sums that a call needs. Raises `InputError` for a mask that is only a boolean tensor."""
    rule = visibility.rule
    if rule is None:
        raise InputError(
            "a forgetting gate sums over the tokens between query and key: a boolean mask does not say which are "
            "padding or of another document, so pass a mask value"
        )
    return Forgotten(accumulated(carried, rule), visibility.query.count)


def accumulated(
    carried: Float[Tensor, "batch kv_heads key group"], visibility: Visibility
) -> Float[Tensor, "batch heads key"]:
    """c_k = Σ_{l ≤ k} log f_l per query head, in fp64: what counts is the small difference of two large sums.

    Over real tokens. If masks separate documents, over the tokens of the document, and those with a negative number,
    which come before every document (sink tokens).
    """
    # (batch, kv_heads, key, group) to (batch, heads, key)
    logs, tokens = carried.double().transpose(2, 3).flatten(1, 2), visibility.key
    if tokens.valid is not None:
        logs = logs.masked_fill(~tokens.valid[:, None], 0.0)
    if tokens.document is None or not separates_documents(visibility.mask):
        return logs.cumsum(2)
    document = tokens.document.expand(len(logs), -1)
    # One cumulative sum over the tokens sorted by document, minus what it was at each document's start.
    order = document.argsort(dim=-1, stable=True)
    index = order[:, None].expand_as(logs)
    sums = logs.gather(2, index).cumsum(2)
    grouped = document.gather(1, order)
    starts = torch.ones_like(grouped, dtype=torch.bool)
    starts[:, 1:] = grouped[:, 1:] != grouped[:, :-1]
    places = torch.arange(grouped.shape[1], device=grouped.device)
    first = places.where(starts, 0).cummax(-1).values[:, None].expand_as(logs)
    before = F.pad(sums, (1, 0)).gather(2, first)  # the sum over earlier documents
    within = torch.empty_like(logs).scatter(2, index, sums - before)
    # Sink tokens precede every document, so each token of the text is after all of them.
    common = (document < 0)[:, None]
    return within + torch.where(common, 0.0, logs.masked_fill(~common, 0.0).sum(2, keepdim=True))
