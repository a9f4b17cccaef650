"""Lengths of the residual stream and of queries, keys and values, and the angles between queries and keys.

Source: Gu et al. 2025, section 3.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.measurement.calls.call import AttentionCall, lengths
from sinkscope.measurement.calls.masks import Rule
from sinkscope.measurement.observers.observer import Array, Hidden, LayerSums, Observer, Piece, divide, in_every

NOTHING = 1e-12  # a shorter vector has no direction


@in_every
@dataclass(frozen=True)
class HiddenNorms(Observer):
    """‖h‖₂ of the residual stream per depth and token: `hidden_norm` (Gu et al. 2025, section 3).

    Depth 0 enters the first block, depth l + 1 leaves block l, before any final norm. Cost: O(T · width) a block.
    """

    @property
    def reads_blocks(self) -> bool:
        return True

    def on_hidden(self, hidden: Hidden) -> Iterable[Piece]:
        yield from _shown("hidden", hidden.lengths[:, None], hidden.start)

    def arrays(self, layer: LayerSums) -> dict[str, Array]:
        return {"hidden_norm": Array(_where_shown(layer, "hidden"), "query")} if "hidden" in layer.sums else {}


@in_every
@dataclass(frozen=True)
class QueryKeyValueNorms(Observer):
    """‖q‖₂, ‖k‖₂, ‖v‖₂ per head and token, after rotation: `query_norm`, `key_norm`, `value_norm`.

    Key-value heads are repeated over their group, so that `head` is always the query head. Cost: O(T · head width).
    Source: Gu et al. 2025, section 3.
    """

    def on_call(self, call: AttentionCall) -> Iterable[Piece]:
        own_keys, start = call.own_keys, call.key_start + call.own_keys.start
        # Cached tokens were counted when they were new.
        uncached = own_keys.stop - own_keys.start == call.key.shape[2]
        key = call.key_lengths if uncached else lengths(call.key[:, :, own_keys])
        value = call.value_lengths if uncached else lengths(call.value[:, :, own_keys])
        yield from _shown("query", call.query_lengths, call.query_start)
        yield from _shown("key", key.repeat_interleave(call.group, 1), start)
        yield from _shown("value", value.repeat_interleave(call.group, 1), start)

    def arrays(self, layer: LayerSums) -> dict[str, Array]:
        if "query" not in layer.sums:
            return {}
        return {
            "query_norm": Array(_where_shown(layer, "query"), "query"),
            "key_norm": Array(_where_shown(layer, "key"), "key"),
            "value_norm": Array(_where_shown(layer, "value"), "key"),
        }


def _shown(name: str, lengths: Float[Tensor, "batch heads n"], start: int) -> Iterable[Piece]:
    """The lengths, and a mark for tokens that have one: tokens cached before observation have none."""
    yield Piece(name, lengths, start)
    yield Piece(f"{name}_shown", torch.ones_like(lengths[:, :1]), start)


def _where_shown(layer: LayerSums, name: str) -> Float[Tensor, "batch heads n"]:
    return divide(layer.sums[name], layer.sums[f"{name}_shown"])


@in_every
@dataclass(frozen=True)
class QueryKeyAngles(Observer):
    """Mean over the real queries t ≠ k that see key k of cos(q_t, k_k), after rotation: `cos_query_key`.

    In causal layers these are the queries t > k, so the last token has none (NaN). In cross-attention, where queries
    and keys are different tokens, every query that sees the key counts. Because q·k = ‖q‖ ‖k‖ cos(q, k), this and
    `QueryKeyValueNorms` decompose the logits of a sink. Cost: O(T · head width) if the mask is the plain triangle or
    everything; with windows and padding one pass in chunks, O(T²) time and O(T) memory. Source: Gu et al. 2025, section
    3.
    """

    def on_call(self, call: AttentionCall) -> Iterable[Piece]:
        query, key = _directions(call.wide_query, call.query_lengths), _directions(call.wide_key, call.key_lengths)
        if call.real is not None:
            query = query * call.real[:, None, :, None]
        yield from _in_linear_time(call, query, key) if _is_plain(call) else _in_chunks(call, query, key)

    def arrays(self, layer: LayerSums) -> dict[str, Array]:
        if "cosine" not in layer.sums:
            return {}
        return {"cos_query_key": Array(divide(layer.sums["cosine"], layer.sums["cosine_queries"]), "key")}


def _directions(vectors: Float[Tensor, "*batch dim"], known: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch dim"]:
    return vectors / known.clamp(min=NOTHING)[..., None]


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
        # A suffix sum includes the query itself, which is taken out: only later queries count.
        seen = query.flip(2).cumsum(2).flip(2) - query
        counts = torch.arange(keys - 1, -1, -1, device=query.device).float()
    else:
        # Repeated, not expanded, because the diagonal is subtracted in place.
        seen = query.sum(2, keepdim=True).repeat(1, 1, keys, 1)
        counts = torch.full((keys,), float(queries), device=query.device)
        if _on_one_axis(call):
            diagonal = slice(call.query_start - call.key_start, call.query_start - call.key_start + queries)
            seen[:, :, diagonal] -= query
            counts[diagonal] -= 1
    # (batch, kv_heads, group, key, dim) · (batch, kv_heads, 1, key, dim)
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
            # Where a query meets its own key: this one diagonal is both in the upper and in the lower triangle.
            offset = call.query_start - call.key_start + rows.start - columns.start
            diagonal = torch.ones(counted.shape[-2:], dtype=torch.bool, device=counted.device)
            counted = counted & ~(diagonal.triu(offset) & diagonal.tril(offset))
        part, keys = query[samples, :, rows], key[samples, :, columns]
        batch, heads, height, dim = part.shape
        cosine = part.reshape(batch, keys.shape[1], -1, dim) @ keys.mT
        cosine = cosine.view(batch, heads, height, -1).mul_(counted)
        start = call.key_start + columns.start
        yield Piece("cosine", cosine.sum(-2), start, samples)
        yield Piece("cosine_queries", counted.sum(-2).float().expand(batch, heads, -1), start, samples)


def _on_one_axis(call: AttentionCall) -> bool:
    return not call.layer.crosses
