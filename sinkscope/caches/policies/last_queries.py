"""Policies that use what the last queries attend to."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from sinkscope.caches.call import EvictionCall
from sinkscope.caches.notes import LastQueries, Marked, Note, Pivotal
from sinkscope.caches.policies.policy import Policy, counted
from sinkscope.errors import InputError

FEW_COLUMNS = 8  # times the slots: up to so many columns, counting is faster than sorting


class _Window(Policy):
    """Uses the attention weights of a window of queries, and keeps that window's own tokens."""

    window: int
    reads_weights = True

    @property
    def needs(self) -> tuple[Note, ...]:
        return (LastQueries(self.window),) if self.window > 1 else ()

    def stays(self, score: Tensor, call: EvictionCall, recent: int) -> Float[Tensor, "batch kv_heads key"]:
        return score.masked_fill(call.places >= call.total - recent, torch.inf)


@dataclass(frozen=True)
class SnapKV(_Window):
    """Mean weight from the last `window` queries on the keys before them, pooled over `kernel` neighbors.

    score = avg_pool(mean_t A[t, k]) over stored keys in the order of their places, with zeros beyond the ends, averaged
    over a head group; the window's own keys stay. During decoding, the last `window` queries are kept. Source: Li et
    al. 2024.

    A decoded token changes the softmax of all `window` queries, so each step computes `window` · keys weights anew. On
    a CPU these products alone take about a third as long as a step of SmolLM2-135M (`benchmarks.eviction`).
    """

    window: int = 32
    kernel: int = 5
    together = True

    def __post_init__(self) -> None:
        counted("SnapKV", "window", self.window, least=1)
        counted("SnapKV", "kernel", self.kernel, least=1)
        if self.kernel % 2 == 0:
            raise InputError(f"SnapKV: kernel is {self.kernel}, expected an odd number, e.g. {self.kernel + 1}")

    @property
    def least(self) -> int:
        return self.window + 1

    def newest(self, keys: int) -> int:
        return self.window

    def fitted(self, newest: int) -> Policy:
        return replace(self, window=max(1, min(self.window, newest)))

    def score(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
        before = call.real & (call.places < call.total - self.window)
        mean = (LastQueries(self.window).received(call) / self.window).masked_fill(~before, 0.0)
        # In the order of places, without the window and empty slots, whose zeros all go to one further entry.
        rank = ranks(call.places, before, call.total)
        by_rank = mean.new_zeros(*mean.shape[:2], mean.shape[2] + 1).scatter_(-1, rank, mean)
        pooled = functional.avg_pool1d(by_rank, self.kernel, stride=1, padding=self.kernel // 2)
        return self.stays(pooled.gather(-1, rank), call, self.window)


def ranks(
    places: Int[Tensor, "batch kv_heads key"], among: Bool[Tensor, "batch kv_heads key"], total: int
) -> Int[Tensor, "batch kv_heads key"]:
    """How many of a head's keys `among` precede each of them; the number of slots for all other keys."""
    slots = places.shape[2]
    if total > FEW_COLUMNS * slots:
        order = places.masked_fill(~among, total).argsort(-1)
        rank = torch.empty_like(order).scatter_(-1, order, torch.arange(slots, device=order.device).expand_as(order))
    else:  # count the held columns: an eighth of the time of a sort
        at = places.masked_fill(~among, total)
        held = torch.zeros(*places.shape[:2], total + 1, dtype=torch.int32, device=places.device).scatter_(-1, at, 1)
        rank = held.cumsum(-1).gather(-1, at) - 1
    return rank.masked_fill(~among, slots)


@dataclass(frozen=True)
class TOVA(_Window):
    """Weight from the last query, averaged over all heads, the same for each. Source: Oren et al. 2024."""

    window = 1
    together = True

    def score(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
        return _last(call)


@dataclass(frozen=True)
class Scissorhands(Policy):
    """How many of the last `window` queries gave a key at least the uniform share: A[t, k] ≥ 1 / (keys that t sees).

    A is averaged over a head group, as computed when t arrived; the newest `recent` tokens stay. Source: Liu et al.
    2023, who count the queries that gave less, among the last 400. One bit is kept per stored key and query.
    """

    window: int = 400
    recent: int = 10
    together = True

    def __post_init__(self) -> None:
        counted("Scissorhands", "window", self.window, least=1)
        counted("Scissorhands", "recent", self.recent)

    @property
    def needs(self) -> tuple[Note, ...]:
        return (Pivotal(self.window),)

    @property
    def least(self) -> int:
        return self.recent + 1

    def newest(self, keys: int) -> int:
        return self.recent

    def fitted(self, newest: int) -> Policy:
        return replace(self, recent=max(1, min(self.recent, newest)))

    def score(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
        counts = call.notes[Pivotal(self.window)][..., -1].float()
        return counts.masked_fill(call.places >= call.total - self.recent, torch.inf)


@dataclass(frozen=True)
class FastV(_Window):
    """Drop the image tokens (`image`: their ids) that the last query attends to least; text is dropped last.

    score = A[last, k], averaged over heads, + 1 for tokens outside images. The first `layers` layers keep everything.
    Source: Chen et al. 2024b. They rank once, after layer `layers`, and drop the tokens from the hidden states of all
    later layers; here each later layer ranks its own keys, and no hidden state is dropped.
    """

    image: tuple[int, ...] = ()
    layers: int = 2
    window = 1
    together = True

    def __post_init__(self) -> None:
        counted("FastV", "layers", self.layers)

    @property
    def needs(self) -> tuple[Note, ...]:
        return (Marked(self.image),) if self.image else ()

    @property
    def skipped(self) -> int:
        return self.layers

    def ranks(self, call: EvictionCall) -> Tensor | None:
        return 1 - call.notes[Marked(self.image)] if self.image else None

    def score(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
        ranks = self.ranks(call)
        return _last(call) if ranks is None else _last(call) + ranks


def _last(call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
    """Weight from the last query, averaged over all heads; heads that do not keep the key of that place count as 0."""
    weights = LastQueries(1).weights(call).mean((2, 3))
    if torch.equal(call.places, call.places[:, :1].expand_as(call.places)):
        return weights.mean(1, keepdim=True).expand_as(weights)
    # Heads hold different keys, so weights are added up by place; empty slots add their 0 to place 0.
    places = call.places.clamp(min=0).flatten(1)
    sums = weights.new_zeros(len(weights), call.total)
    sums.scatter_add_(1, places, weights.masked_fill(~call.real, 0.0).flatten(1))
    return sums.gather(1, places).view_as(weights) / weights.shape[1]
