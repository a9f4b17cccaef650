"""Policies that ask what the last queries attend to."""

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

FEW_COLUMNS = 8


class _Window(Policy):
    """Reads the weights of a window of queries, and keeps that window's own tokens."""

    window: int
    reads_weights = True

    @property
    def needs(self) -> tuple[Note, ...]:
        return (LastQueries(self.window),) if self.window > 1 else ()

    def stays(self, score: Tensor, call: EvictionCall, recent: int) -> Float[Tensor, "batch kv_heads key"]:
        return score.masked_fill(call.places >= call.total - recent, torch.inf)


@dataclass(frozen=True)
class SnapKV(_Window):
    """Mean weight from the last `window` queries on what is before them, pooled over `kernel` neighbors.

    score = avg_pool(mean_t A[t, k]) over stored keys in the order of their places, zeros beyond the ends, mean over a
    head group; the window's own keys stay. While decoding, the last `window` queries are kept. Source: Li et al. 2024.
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
        # By rank among the keys before the window; the others go behind the last, where a 0 stands.
        rank = ranks(call.places, before, call.total)
        by_rank = mean.new_zeros(*mean.shape[:2], mean.shape[2] + 1).scatter_(-1, rank, mean)
        pooled = functional.avg_pool1d(by_rank, self.kernel, stride=1, padding=self.kernel // 2)
        return self.stays(pooled.gather(-1, rank), call, self.window)


def ranks(
    places: Int[Tensor, "batch kv_heads key"], among: Bool[Tensor, "batch kv_heads key"], total: int
) -> Int[Tensor, "batch kv_heads key"]:
    """How many of the keys `among` a head's stand before each of them; the number of slots for the others."""
    slots = places.shape[2]
    if total > FEW_COLUMNS * slots:
        order = places.masked_fill(~among, total).argsort(-1)
        rank = torch.empty_like(order).scatter_(-1, order, torch.arange(slots, device=order.device).expand_as(order))
    else:  # counting columns takes an eighth of a sort, as long as they are not many times the slots
        at = places.masked_fill(~among, total)
        held = torch.zeros(*places.shape[:2], total + 1, dtype=torch.int32, device=places.device).scatter_(-1, at, 1)
        rank = held.cumsum(-1).gather(-1, at) - 1
    return rank.masked_fill(~among, slots)


@dataclass(frozen=True)
class TOVA(_Window):
    """Weight from the last query, mean over all heads, the same for each. Source: Oren et al. 2024."""

    window = 1
    together = True

    def score(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
        return _last(call)


@dataclass(frozen=True)
class Scissorhands(Policy):
    """How many of the last `window` queries gave a key at least what is even: A[t, k] ≥ 1 / (keys that t sees).

    A is the mean over a head group, as it was when t came; the newest `recent` tokens stay. Source: Liu et al. 2023,
    who count the queries that gave less, among the last 400. A bit is kept for each stored key and query.
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
    """Drop the tokens of images (`image`: their ids) that the last query attends to least; text goes last.

    score = A[last, k], mean over heads, + 1 for what is no image. The first `layers` layers keep everything.
    Source: Chen et al. 2024b. They rank once, behind layer `layers`, and drop the tokens from all later layers' hidden
    states; here every later layer ranks its own keys, and no hidden state is dropped.
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
    """Weight from the last query, mean over all heads, of keys of one place; 0 from heads that keep none of it."""
    weights = LastQueries(1).weights(call).mean((2, 3))
    if torch.equal(call.places, call.places[:, :1].expand_as(call.places)):
        return weights.mean(1, keepdim=True).expand_as(weights)
    places = call.places.clamp(min=0).flatten(1)
    sums = weights.new_zeros(len(weights), call.total)
    sums.scatter_add_(1, places, weights.masked_fill(~call.real, 0.0).flatten(1))
    return sums.gather(1, places).view_as(weights) / weights.shape[1]
