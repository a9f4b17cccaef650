"""Which stored tokens are sinks: measured, found while the prompt is read, named, or simply the first."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from sinkscope.caches.call import EvictionCall
from sinkscope.caches.notes import Marked, Note, Received
from sinkscope.errors import InputError
from sinkscope.measurements import Measurement, comparable_places

ONLINE_QUERIES = 16  # that must see a token before what it receives says something


class SinkSet(ABC):
    """Tokens to protect. Build one with `of`, `online`, `tokens` or `first`."""

    @property
    def needs(self) -> tuple[Note, ...]:
        return ()

    @property
    def most(self) -> int | None:
        """How many tokens of a head it can hold; None where the text decides."""
        return None

    @property
    def together(self) -> bool:
        """Whether layers need not be told apart (`Policy.together`)."""
        return True

    @abstractmethod
    def among(self, call: EvictionCall) -> Bool[Tensor, "batch kv_heads key"]:
        """Which stored keys are in it."""

    @staticmethod
    def of(measurement: Measurement, epsilon: float = 0.3) -> SinkSet:
        """The positions that are sinks in a measurement, head by head: mean α over samples above `epsilon`.

        Positions that at most half of the queries see are none: few queries say nothing yet (`strongest_position` has
        the same rule). A key-value head has those of all query heads of its group. Raises `InputError` where attention
        received was not measured, and for an epsilon outside (0, 1).
        """
        _check(epsilon)
        data = measurement.data
        if "attention_received" not in data:
            raise InputError("SinkSet.of: the measurement has no attention_received: observe AttentionReceived")
        decoder = data["stack"].values == "decoder"
        with np.errstate(invalid="ignore"):
            alpha = data["attention_received"].transpose("sample", "layer", "head", "position").values[:, decoder]
            known = ~np.isnan(alpha) & comparable_places(data)[:, decoder][:, :, None]
            mean = np.where(known, alpha, 0).sum(0) / np.maximum(known.sum(0), 1)
        return _Measured(mean > epsilon, tuple(int(index) for index in data["layer_index"].values[decoder]))

    @staticmethod
    def online(epsilon: float = 0.3) -> SinkSet:
        """Tokens whose α = Σ_t A[t, k] / (T − k) so far is above `epsilon`, once 16 queries could see them."""
        _check(epsilon)
        return _Online(epsilon)

    @staticmethod
    def tokens(ids: Iterable[int]) -> SinkSet:
        """Every token that is one of these ids, wherever it stands."""
        found = tuple(ids)
        if not found or any(not isinstance(i, int) or isinstance(i, bool) or i < 0 for i in found):
            raise InputError(f"SinkSet.tokens: {found} are no token ids")
        return _Tokens(found)

    @staticmethod
    def first(n: int = 4) -> SinkSet:
        """The first n tokens, as StreamingLLM has it."""
        if not isinstance(n, int) or isinstance(n, bool) or n < 0:
            raise InputError(f"SinkSet.first: {n!r} is no number of tokens")
        return _First(n)


@dataclass(frozen=True, eq=False)
class _Measured(SinkSet):
    sinks: np.ndarray  # (layer, head, position)
    indices: tuple[int, ...]
    together = False

    @property
    def most(self) -> int | None:
        return int(self.sinks.any(1).sum(-1).max(initial=0))

    def among(self, call: EvictionCall) -> Bool[Tensor, "batch kv_heads key"]:
        index = getattr(call.module, "layer_idx", None)
        if index not in self.indices:
            raise InputError(f"SinkSet.of: layer {index} was not measured, only {', '.join(map(str, self.indices))}")
        found = torch.from_numpy(self.sinks[self.indices.index(index)]).to(call.places.device)
        if len(found) < call.query.shape[1]:
            raise InputError(f"SinkSet.of: {len(found)} heads were measured, the layer has {call.query.shape[1]}")
        of_group = found[: call.query.shape[1]].unflatten(0, (-1, call.group)).any(1)
        where = call.positions.clamp(0, of_group.shape[1] - 1)
        inside = (call.positions >= 0) & (call.positions < of_group.shape[1])
        return of_group.expand(len(where), -1, -1).gather(-1, where) & inside


@dataclass(frozen=True)
class _Online(SinkSet):
    epsilon: float

    @property
    def needs(self) -> tuple[Note, ...]:
        return (Received(),)

    def among(self, call: EvictionCall) -> Bool[Tensor, "batch kv_heads key"]:
        queries = call.total - call.places
        return (call.notes[Received()] > self.epsilon * queries) & (queries >= ONLINE_QUERIES)


@dataclass(frozen=True)
class _Tokens(SinkSet):
    ids: tuple[int, ...]

    @property
    def needs(self) -> tuple[Note, ...]:
        return (Marked(self.ids),)

    def among(self, call: EvictionCall) -> Bool[Tensor, "batch kv_heads key"]:
        return call.notes[Marked(self.ids)] > 0


@dataclass(frozen=True)
class _First(SinkSet):
    count: int

    @property
    def most(self) -> int | None:
        return self.count

    def among(self, call: EvictionCall) -> Bool[Tensor, "batch kv_heads key"]:
        return (call.positions >= 0) & (call.positions < self.count)


def _check(epsilon: float) -> None:
    if not 0 < epsilon < 1:
        raise InputError(f"epsilon is {epsilon!r}, expected a share of attention between 0 and 1, such as 0.3")
