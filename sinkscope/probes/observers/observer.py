"""What an observer is: it turns calls and block outputs into sums, and the sums of a batch into named arrays.

To write one: a frozen dataclass that extends `Observer`, overrides the readers it needs, and names what it yields in
`arrays`. Sums are added over the chunks of a call and over the calls of a batch (cached decoding, chunked prefill).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinkscope.probes.calls.call import AttentionCall
from sinkscope.probes.calls.chunks import Chunk

Side = Literal["key", "query"]


@dataclass(frozen=True, eq=False)
class Piece:
    """A part of the sum `name`: `values` (batch, heads, n) for the rows `samples` (all of them: None).

    `start`: absolute position of the first of the n columns; None where columns are no positions in the sequence.
    """

    name: str
    values: Float[Tensor, "batch heads n"]
    start: int | None = None
    samples: slice | None = None


@dataclass(frozen=True, eq=False)
class Array:
    """A result for one layer (batch, heads, n) and what its last axis is.

    `along`: "key" or "query" (absolute positions, to be reduced to real tokens), "nothing" (n = 1), or the list of real
    positions that were asked for.
    """

    values: Float[Tensor, "batch heads n"]
    along: Side | Literal["nothing"] | tuple[int, ...]


@dataclass(frozen=True, eq=False)
class LayerSums:
    """A batch's sums at one place, with the tokens they belong to.

    `queries`, `keys`: real tokens over absolute positions. Queries before `first` were not observed (they came from a
    cache that was filled earlier).
    """

    sums: Mapping[str, Float[Tensor, "batch heads n"]]
    causal: bool
    queries: Bool[Tensor, "batch query"]
    keys: Bool[Tensor, "batch key"]
    first: int = 0

    @property
    def observed(self) -> Bool[Tensor, "batch query"]:
        return self.queries & (torch.arange(self.queries.shape[1]) >= self.first)

    @property
    def query_count(self) -> Int[Tensor, "batch"]:
        return self.observed.sum(-1)

    @property
    def queries_per_key(self) -> Int[Tensor, "batch key"]:
        """T − k for causal layers (whatever further mask is on), T for bidirectional ones."""
        if not self.causal:
            return self.query_count[:, None].expand(-1, self.keys.shape[1])
        return self.observed.flip(-1).cumsum(-1).flip(-1)


@dataclass(frozen=True)
class Observer(ABC):
    """Base of all observers. Each says what it costs."""

    @property
    def reads_blocks(self) -> bool:
        """Whether the residual stream between blocks is needed."""
        return False

    def reads_chunks(self, call: AttentionCall) -> bool:
        """Whether all attention weights of this call are needed, in chunks: O(T²) time, shared by all observers."""
        return False

    def on_call(self, call: AttentionCall) -> Iterable[Piece]:
        """What one attention call adds."""
        return ()

    def on_chunk(self, call: AttentionCall, chunk: Chunk) -> Iterable[Piece]:
        """What a chunk of weights adds; only called where `reads_chunks` says so."""
        return ()

    def on_hidden(self, hidden: Float[Tensor, "batch position width"], start: int) -> Iterable[Piece]:
        """What the residual stream at one depth adds; only called where `reads_blocks` says so."""
        return ()

    @abstractmethod
    def arrays(self, found: LayerSums) -> dict[str, Array]:
        """Named results of one layer or depth, from its sums; empty where this observer saw nothing there."""

    def describe(self) -> dict[str, Any]:
        """The observer as JSON-able data, for the record."""
        return {"name": type(self).__name__, **asdict(self)}


def divide(sums: Tensor, counts: Tensor) -> Tensor:
    """sums / counts, NaN where nothing was counted; sums may end before the counts do (nothing was added there)."""
    sums = torch.nn.functional.pad(sums, (0, counts.shape[-1] - sums.shape[-1]))
    return torch.where(counts > 0, sums / counts.clamp(min=1), torch.nan)
