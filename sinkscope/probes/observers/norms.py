"""Lengths: of the residual stream [C3] and of queries, keys and values [C5]."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.probes.calls.call import AttentionCall
from sinkscope.probes.observers.observer import Array, Hidden, LayerSums, Observer, Piece, divide


@dataclass(frozen=True)
class HiddenNorms(Observer):
    """‖h‖₂ of the residual stream per depth and token: `hidden_norm` [C3].

    Depth 0 enters the first block, depth l + 1 leaves block l, before any final norm. Cost: O(T · width) a block.
    """

    @property
    def reads_blocks(self) -> bool:
        return True

    def on_hidden(self, hidden: Hidden) -> Iterable[Piece]:
        yield from _shown("hidden", _lengths(hidden.values)[:, None], hidden.start)

    def arrays(self, found: LayerSums) -> dict[str, Array]:
        return {"hidden_norm": Array(_where_shown(found, "hidden"), "query")} if "hidden" in found.sums else {}


@dataclass(frozen=True)
class QueryKeyValueNorms(Observer):
    """‖q‖₂, ‖k‖₂, ‖v‖₂ per head and token, after rotation: `query_norm`, `key_norm`, `value_norm` [C5].

    Key-value heads are repeated over their group, so that `head` is always the query head. Cost: O(T · head width).
    """

    def on_call(self, call: AttentionCall) -> Iterable[Piece]:
        own, start = call.own_keys, call.key_start + call.own_keys.start
        yield from _shown("query", _lengths(call.query), call.query_start)
        yield from _shown("key", _lengths(call.key[:, :, own]).repeat_interleave(call.group, 1), start)
        yield from _shown("value", _lengths(call.value[:, :, own]).repeat_interleave(call.group, 1), start)

    def arrays(self, found: LayerSums) -> dict[str, Array]:
        if "query" not in found.sums:
            return {}
        return {
            "query_norm": Array(_where_shown(found, "query"), "query"),
            "key_norm": Array(_where_shown(found, "key"), "key"),
            "value_norm": Array(_where_shown(found, "value"), "key"),
        }


def _lengths(vectors: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch"]:
    return vectors.float().norm(dim=-1)


def _shown(name: str, lengths: Float[Tensor, "batch heads n"], start: int) -> Iterable[Piece]:
    """The lengths, and a mark for the tokens that have one: those in a cache from before were never seen."""
    yield Piece(name, lengths, start)
    yield Piece(f"{name}_shown", torch.ones_like(lengths[:, :1]), start)


def _where_shown(found: LayerSums, name: str) -> Float[Tensor, "batch heads n"]:
    return divide(found.sums[name], found.sums[f"{name}_shown"])
