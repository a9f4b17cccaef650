"""Angles between queries and keys [C2]."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sinkscope.probes.calls.call import AttentionCall
from sinkscope.probes.calls.masks import Rule
from sinkscope.probes.observers.observer import Array, LayerSums, Observer, Piece, divide


@dataclass(frozen=True)
class QueryKeyAngles(Observer):
    """Mean over the real queries t ≠ k that see key k of cos(q_t, k_k), after rotation: `cos_query_key` [C2].

    In causal layers these are the queries t > k, so the last token has none (NaN). In cross-attention, where queries
    and keys are different tokens, every query that sees the key counts. Since q·k = ‖q‖ ‖k‖ cos(q, k), this with
    `QueryKeyValueNorms` splits the logits of a sink. Cost: O(T · head width) where the mask is the plain triangle or
    everything; with windows and padding one pass in chunks, O(T²) time and O(T) memory.
    """

    def on_call(self, call: AttentionCall) -> Iterable[Piece]:
        query, key = _directions(call.wide_query), _directions(call.wide_key)
        if call.real is not None:
            query = query * call.real[:, None, :, None]
        yield from _in_linear_time(call, query, key) if _is_plain(call) else _in_chunks(call, query, key)

    def arrays(self, found: LayerSums) -> dict[str, Array]:
        if "cosine" not in found.sums:
            return {}
        return {"cos_query_key": Array(divide(found.sums["cosine"], found.sums["cosine_queries"]), "key")}


def _directions(vectors: Tensor) -> Tensor:
    return F.normalize(vectors, dim=-1)


def _is_plain(call: AttentionCall) -> bool:
    mask = call.mask
    if not isinstance(mask, Rule) or not mask.is_triangle or call.real is not None:
        return False
    return not mask.causal or call.query.shape[2] == mask.keys


def _in_linear_time(call: AttentionCall, query: Tensor, key: Tensor) -> Iterable[Piece]:
    """Σ_{t>k} q̂_t·k̂_k = (Σ_{t>k} q̂_t)·k̂_k: one suffix sum, or the whole sum in bidirectional layers."""
    batch, heads, queries, dim = query.shape
    keys = call.mask.keys
    if isinstance(call.mask, Rule) and call.mask.causal:
        seen = query.flip(2).cumsum(2).flip(2) - query
        counts = torch.arange(keys - 1, -1, -1, device=query.device).float()
    else:
        seen = query.sum(2, keepdim=True).repeat(1, 1, keys, 1)
        counts = torch.full((keys,), float(queries), device=query.device)
        if _on_one_axis(call):
            own = slice(call.query_start - call.key_start, call.query_start - call.key_start + queries)
            seen[:, :, own] -= query
            counts[own] -= 1
    grouped = seen.reshape(batch, key.shape[1], call.group, keys, dim)
    cosine = (grouped * key[:, :, None, :keys]).sum(-1).view(batch, heads, keys)
    yield Piece("cosine", cosine, call.key_start)
    yield Piece("cosine_queries", counts.expand(batch, heads, keys), call.key_start)


def _in_chunks(call: AttentionCall, query: Tensor, key: Tensor) -> Iterable[Piece]:
    for samples, rows in call.parts():
        columns = call.mask.extent(samples, rows)
        counted = call.mask.visible(samples, rows, columns).to(query.device)
        if call.real is not None:
            counted = counted & call.real[samples, None, rows, None]
        if _on_one_axis(call):
            offset = call.query_start - call.key_start + rows.start - columns.start
            own = torch.ones(counted.shape[-2:], dtype=torch.bool, device=counted.device)
            counted = counted & ~(own.triu(offset) & own.tril(offset))
        part, keys = query[samples, :, rows], key[samples, :, columns]
        batch, heads, height, dim = part.shape
        cosine = part.reshape(batch, keys.shape[1], -1, dim) @ keys.mT
        cosine = cosine.view(batch, heads, height, -1).mul_(counted)
        start = call.key_start + columns.start
        yield Piece("cosine", cosine.sum(-2), start, samples)
        yield Piece("cosine_queries", counted.sum(-2).float().expand(batch, heads, -1), start, samples)


def _on_one_axis(call: AttentionCall) -> bool:
    return call.layer.stack != "cross"
