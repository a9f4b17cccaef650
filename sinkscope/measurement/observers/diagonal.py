"""The attention that a query gives to itself, to nearby tokens, and to the first tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from sinkscope.errors import InputError
from sinkscope.measurement.calls.call import ROWS, AttentionCall
from sinkscope.measurement.calls.chunks import Chunk
from sinkscope.measurement.calls.masks import Rule
from sinkscope.measurement.observers.observer import (
    Array,
    LayerSums,
    Observer,
    Piece,
    WeightsObserver,
    divide,
    in_every,
)


@in_every
@dataclass(frozen=True)
class SelfAttention(Observer):
    """mean_t A[t, t] over real queries: `self_attention` (sample, layer, head).

    If outputs drop their token's own value (exclusive self-attention), the diagonal can take the mass that a sink takes
    elsewhere, so compare it with the sink. Absent in cross-attention, where queries and keys are different tokens.
    Cost: O(T) beyond the log-sum-exp where weights are a softmax, else the pass over all weights in chunks. Source:
    Zhai 2026; Wu & Tu 2024 mask it.
    """

    @property
    def reads_weights_alone(self) -> bool:
        return True

    def reads_chunks(self, call: AttentionCall) -> bool:
        return _has_own(call) and not call.is_softmax

    def on_chunk(self, call: AttentionCall, chunk: Chunk) -> Iterable[Piece]:
        # Both are columns of the call: query i's own key is in column own_keys.start + i.
        rows = torch.arange(chunk.rows.start, chunk.rows.stop, device=chunk.weights.device) + call.own_keys.start
        columns = torch.arange(chunk.columns.start, chunk.columns.stop, device=rows.device)
        yield Piece("own", (chunk.weights * (rows[:, None] == columns)).sum((-2, -1)), None, chunk.samples)

    def on_call(self, call: AttentionCall) -> Iterable[Piece]:
        if not _has_own(call) or self.reads_chunks(call):
            return
        lse, everything = call.counted_lse, slice(0, len(call.query))
        if call.is_product and isinstance(call.mask, Rule):  # if it shows each real query its own key
            # (batch, kv_heads, group, query, dim) · (batch, kv_heads, 1, query, dim)
            query = call.wide_query.unflatten(1, (-1, call.group))
            own_scores = torch.linalg.vecdot(query, call.wide_key[:, :, None, call.own_keys]).flatten(1, 2)
            yield Piece("own", (own_scores * call.scaling - lse).exp().sum(-1), None, everything)
            return
        for start in range(0, call.query.shape[2], ROWS):  # blocks on the diagonal, of which only the diagonal is kept
            rows = slice(start, min(call.query.shape[2], start + ROWS))
            columns = slice(call.own_keys.start + rows.start, call.own_keys.start + rows.stop)
            own_scores = call.scores(everything, rows, columns).diagonal(dim1=-2, dim2=-1)
            yield Piece("own", (own_scores - lse[:, :, rows]).exp().sum(-1), None, everything)

    def arrays(self, layer: LayerSums) -> dict[str, Array]:
        if "own" not in layer.sums:
            return {}
        return {"self_attention": Array(divide(layer.sums["own"], layer.query_count[:, None]), None)}


def _has_own(call: AttentionCall) -> bool:
    """Whether each query has its own key."""
    return call.layer.stack != "cross" and call.own_keys.stop - call.own_keys.start == call.query.shape[2]


@dataclass(frozen=True)
class WindowMass(WeightsObserver):
    """Σ A[t, k] over the first `sinks` real tokens and the last `recent` before t, t among them: `window_mass`.

    (sample, layer, head, position), the position being the query's. One minus it is what a head would lose with only
    sinks and a window in its cache; a head that retrieves occasionally shows in a low quantile, not in the mean. Only
    when asked for ("all" leaves it out). Cost: the pass over all weights in chunks. Raises `InputError` for negative
    sizes.
    """

    sinks: int = 4
    recent: int = 64

    def __post_init__(self) -> None:
        if self.sinks < 0 or self.recent < 1:
            raise InputError(f"{self.sinks} sinks and {self.recent} recent tokens: at least 0 and 1")

    def reads_chunks(self, call: AttentionCall) -> bool:
        return call.layer.stack == "decoder"

    def on_chunk(self, call: AttentionCall, chunk: Chunk) -> Iterable[Piece]:
        queries, keys = _places(call, chunk)
        distance = queries[..., None] - keys[:, None]
        near = (distance >= 0) & (distance < self.recent)
        mass = (chunk.weights * (near | (keys < self.sinks)[:, None])[:, None]).sum(-1)
        yield Piece("window", mass, call.query_start + chunk.rows.start, chunk.samples)

    def arrays(self, layer: LayerSums) -> dict[str, Array]:
        return {"window_mass": Array(layer.sums["window"], "query")} if "window" in layer.sums else {}


@dataclass(frozen=True)
class AttentionBefore(WeightsObserver):
    """A[t, t − distance], the attention to the real token `distance` before the query: `attention_before`.

    (sample, layer, head, position), the position being the query's; 0 for the first queries, before which there is no
    such token. At distance 1 it scores previous-token heads; on a repeated text of n tokens, at distance n − 1,
    prefix-matching heads, which attend to what followed their token the last time (Olsson et al. 2022). Only when asked
    for ("all" leaves it out). Cost: the pass over all weights in chunks. Raises `InputError` for a negative distance.
    """

    distance: int = 1

    def __post_init__(self) -> None:
        if self.distance < 0:
            raise InputError(f"distance = {self.distance}: at least 0, a query's own token")

    def reads_chunks(self, call: AttentionCall) -> bool:
        return call.layer.stack == "decoder"

    def on_chunk(self, call: AttentionCall, chunk: Chunk) -> Iterable[Piece]:
        queries, keys = _places(call, chunk)
        there = queries[..., None] - keys[:, None] == self.distance
        yield Piece(
            "before", (chunk.weights * there[:, None]).sum(-1), call.query_start + chunk.rows.start, chunk.samples
        )

    def arrays(self, layer: LayerSums) -> dict[str, Array]:
        return {"attention_before": Array(layer.sums["before"], "query")} if "before" in layer.sums else {}


def _places(call: AttentionCall, chunk: Chunk) -> tuple[Int[Tensor, "#batch query"], Int[Tensor, "#batch key"]]:
    """The chunk's queries and keys, numbered among the real tokens of their row. Numbers of padding mean nothing."""
    queries = slice(call.query_start + chunk.rows.start, call.query_start + chunk.rows.stop)
    keys = slice(call.key_start + chunk.columns.start, call.key_start + chunk.columns.stop)
    if call.real_keys is None:
        places = torch.arange(max(queries.stop, keys.stop), device=chunk.weights.device)[None]
    else:  # padding may lie between learned tokens and the text
        places = call.real_keys[chunk.samples].to(chunk.weights.device).cumsum(-1) - 1
    return places[:, queries], places[:, keys]
