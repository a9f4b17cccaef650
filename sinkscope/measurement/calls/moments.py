"""Moments of a row's logits without the logits, where they are plain products: Σ_k s_tk and Σ_k s_tk² in O(T)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from sinkscope.measurement.calls.call import AttentionCall
from sinkscope.measurement.calls.masks import Rule

ROWS = 64  # queries of a block, whose own keys are met one by one
HELD = 2**19  # products at once: more leave the cache


def is_plain(call: AttentionCall) -> bool:
    """Whether queries see everything, or everything up to themselves, and nothing is padding."""
    return isinstance(call.mask, Rule) and call.mask.is_triangle


def is_linear(call: AttentionCall) -> bool:
    """Whether logits are scaling · q·k, nothing else, on all keys or all up to the query."""
    plain = call.is_softmax and is_plain(call) and call.entries is None
    return plain and call.softcap is None and call.bias is None


def seen_by_plain(call: AttentionCall, rows: slice) -> Int[Tensor, "query"]:
    """How many keys these queries see, where `is_plain`."""
    mask = call.mask
    assert isinstance(mask, Rule)
    places = torch.arange(rows.start, rows.stop, device=call.query.device) + mask.start + 1
    return places.clamp(max=mask.keys) if mask.causal else torch.full_like(places, mask.keys)


def linear_spread(
    call: AttentionCall,
) -> tuple[Float[Tensor, "batch heads query"], Float[Tensor, "batch #heads query"]]:
    """σ_t, the norm of the centered logits of each row with the sink's among them, and n_t, how many they are.

    For `is_linear` calls. With M = Σ_k k kᵀ over the keys before a block of queries, Σ_k (q·k)² = qᵀ M q: O(T · dim²)
    time. The mean key is taken off all keys, which shifts all logits of a row alike and leaves their digits.
    """
    batch, heads, queries, _ = call.query.shape
    center = call.wide_key.mean(2, keepdim=True)
    key = (call.wide_key - center).flatten(0, 1)
    query = call.scaled_query.reshape(len(key), call.group, queries, -1)
    step = max(1, HELD // (call.group * (queries + ROWS) * ROWS))
    parts = [_moments(call, query[at : at + step], key[at : at + step]) for at in range(0, len(key), step)]
    total, squares = (torch.cat(part).view(batch, heads, queries) for part in zip(*parts, strict=True))
    count = seen_by_plain(call, slice(0, queries)).float().expand(batch, 1, -1)
    if call.sink is not None:
        sink = call.sink.expand(batch, heads, queries)
        shift = (query.view(batch, -1, call.group, queries, query.shape[-1]) * center[:, :, None]).sum(-1)
        shown = sink > -torch.inf  # a slot without any mass is none
        own = (sink - shift.reshape(sink.shape)).where(shown, 0.0)
        total, squares, count = total + own, squares + own.square(), count + shown
    count = count.clamp(min=1)
    spread = (squares - total.square() / count).clamp(min=0).sqrt()
    return spread, count


def _moments(
    call: AttentionCall, query: Float[Tensor, "kv group query dim"], key: Float[Tensor, "kv key dim"]
) -> tuple[Tensor, Tensor]:
    """Σ_k s and Σ_k s² of each row, (kv, group, query)."""
    mask = call.mask
    assert isinstance(mask, Rule)
    if not mask.causal:
        return _of_all(query, key)
    queries, start = query.shape[2], mask.start
    short = -queries % ROWS
    own = F.pad(key[:, start : start + queries], (0, 0, 0, short)).unflatten(1, (-1, ROWS))
    cut = F.pad(query, (0, 0, 0, short)).unflatten(2, (-1, ROWS))
    before = key[:, :start]
    sums = _before(own.sum(2), before.sum(1))
    grams = _before(own.mT @ own, before.mT @ before)
    beside = cut @ own[:, None].mT
    beside.flatten(0, 2).tril_()  # of more than three axes torch makes a copy
    total = torch.linalg.vecdot(cut, sums[:, None, :, None]) + beside.sum(-1)
    squares = torch.linalg.vecdot(cut @ grams[:, None], cut) + beside.square_().sum(-1)
    return total.flatten(2)[..., :queries], squares.flatten(2)[..., :queries]


def _before(parts: Float[Tensor, "kv block *n"], first: Float[Tensor, "kv *n"]) -> Float[Tensor, "kv block *n"]:
    """Of each block, the sum of all before it; added up in float64, as a product, which is faster than a sum."""
    blocks = parts.shape[1]
    earlier = torch.ones(blocks, blocks, dtype=torch.float64, device=parts.device).tril(-1)
    total = (earlier @ parts.flatten(2).double()).unflatten(2, parts.shape[2:])
    return (total + first[:, None]).to(parts.dtype)


def _of_all(query: Float[Tensor, "kv group query dim"], key: Float[Tensor, "kv key dim"]) -> tuple[Tensor, Tensor]:
    total = (query @ key.sum(1)[:, None, :, None])[..., 0]
    return total, ((query @ (key.mT @ key)[:, None]) * query).sum(-1)
