"""The base class of observers, which turn calls and block outputs into sums, and the sums of a batch into arrays.

To write one: a frozen dataclass that extends `Observer`, overrides the readers it needs, and names its results in
`arrays`; `@in_every` registers it. Sums are added over the chunks of a call and over the calls of a batch (cached
decoding, chunked prefill).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from sinkscope.hooks import Depth, Place
from sinkscope.measurement.calls.call import AttentionCall, locate
from sinkscope.measurement.calls.chunks import Chunk, RowKind, RowScores
from sinkscope.registry import Registry, check_kind, taking

Side = Literal["key", "query"]
Reduction = Literal["sum", "max"]
Kind = TypeVar("Kind", bound="Observer")


@dataclass(frozen=True, eq=False)
class Piece:
    """A part of the statistic `name`: `values` (batch, heads, ...) for the rows `samples` (all of them: None).

    `start`: absolute position of the first entry of the third axis; None if that axis is not a position. `reduction`:
    pieces are summed, or their maximum is taken.
    """

    name: str
    values: Float[Tensor, "batch heads *n"]
    start: int | None = None
    samples: slice | None = None
    reduction: Reduction = "sum"


@dataclass(frozen=True, eq=False)
class Array:
    """A result at one place, (batch, heads, [positions,] *extra), and what its axes are.

    `along`: what the third axis is: "key" or "query" (absolute positions, to be reduced to real tokens), the list of
    real positions that were asked for, or None if there is no such axis. `extra` names the axes after it; their
    coordinates are in `Observer.coordinates`. `per_head=False`: the head axis has one entry for the layer. `kept`: only
    the first `kept` samples of the measurement have rows, along the axis `kept` instead of `sample`.
    """

    values: Float[Tensor, "batch heads *n"]
    along: Side | tuple[int, ...] | None
    extra: tuple[str, ...] = ()
    per_head: bool = True
    kept: int | None = None


@dataclass(frozen=True, eq=False)
class Hidden:
    """The residual stream at one depth, in one forward pass.

    `start`: absolute position of the first token; `real`: False for padding, None where all are real; `samples_before`:
    how many samples the measurement had before this batch; `real_so_far`: as `real`, for every token of the rows so
    far, including cached ones.
    """

    values: Float[Tensor, "batch position width"]
    start: int
    depth: Depth
    real: Bool[Tensor, "batch position"] | None = None
    samples_before: int = 0
    real_so_far: Bool[Tensor, "batch _"] | None = None

    @cached_property
    def lengths(self) -> Float[Tensor, "batch position"]:
        """‖h_t‖₂ in fp32."""
        return self.values.float().norm(dim=-1)

    @cached_property
    def magnitudes(self) -> Float[Tensor, "batch position width"]:
        """|h_t| in fp32."""
        return self.values.abs().float()

    @cached_property
    def peaks(self) -> Float[Tensor, "batch position"]:
        """max over dimensions of |h_t| in fp32."""
        return self.magnitudes.amax(-1)

    @property
    def counted(self) -> Bool[Tensor, "batch position"]:
        """True for real tokens."""
        if self.real is not None:
            return self.real
        return torch.ones(self.values.shape[:2], dtype=torch.bool, device=self.values.device)

    def locate(self, positions: Sequence[int]) -> tuple[Int[Tensor, "batch n"], Bool[Tensor, "batch n"]]:
        """Column of each row's p-th real token for p in `positions`, and whether this pass has that column."""
        return locate(positions, self.real_so_far, self.values, self.start, self.values.shape[1])


@dataclass(frozen=True, eq=False)
class ModuleCall:
    """The current forward pass, for observers of modules."""

    batch: int
    start: int
    real: Bool[Tensor, "batch position"] | None
    samples_before: int


@dataclass(frozen=True, eq=False)
class ModuleWatch:
    """A module that an observer hooks itself: `read(pass, args, kwargs, output)` yields pieces for `place`."""

    module: nn.Module
    place: Place
    read: Callable[[ModuleCall, tuple[Any, ...], Mapping[str, Any], Any], Iterable[Piece]]


@dataclass(frozen=True, eq=False)
class LayerSums:
    """A batch's sums at one place, with the tokens they belong to.

    `queries`, `keys`: real tokens over absolute positions. Queries before `first` were not observed (they came from a
    cache that was filled earlier). `visible_queries`: how many of the observed real queries the layer's masks let see
    each key, with one head if all share the mask; None if no attention call was seen.
    """

    sums: Mapping[str, Float[Tensor, "batch heads *n"]]
    queries: Bool[Tensor, "batch query"]
    keys: Bool[Tensor, "batch key"]
    first: int = 0
    visible_queries: Float[Tensor, "batch #heads key"] | None = None

    @property
    def observed(self) -> Bool[Tensor, "batch query"]:
        return self.queries & (torch.arange(self.queries.shape[1]) >= self.first)

    @property
    def query_count(self) -> Int[Tensor, "batch"]:
        return self.observed.sum(-1)


@dataclass(frozen=True)
class Observer(ABC):
    """Base class of all observers. Each docstring states the cost."""

    in_all: ClassVar[bool] = True
    """Whether `observers="all"` includes it; otherwise it runs where it is named, as in `["all", "SpectralBands"]`."""

    @property
    def reads_blocks(self) -> bool:
        """Whether the residual stream between blocks is needed."""
        return False

    @property
    def reads_weights_alone(self) -> bool:
        """Whether attention weights are all it needs, without queries, keys, values and masks.

        Only such observers read the returned maps of families outside the attention interface. The others read the
        queries, keys and values of a map if these are known to produce it, else nothing.
        """
        return False

    @property
    def coordinates(self) -> Mapping[str, Sequence[int | float | str]]:
        """Names of the entries along the extra axes of its arrays."""
        return {}

    def bound(self, model: nn.Module) -> Observer:
        """This observer with what it needs from a model, such as the unembedding; itself if it needs nothing.

        Raises `UnsupportedModelError` for a model that lacks what is observed.
        """
        return self

    def watches(self, model: nn.Module) -> Iterable[ModuleWatch]:
        """Modules that this observer hooks itself, besides attention calls and blocks."""
        return ()

    def reads_chunks(self, call: AttentionCall) -> bool:
        """Whether all attention weights of this call are needed, in chunks: O(T²) time, shared by all observers."""
        return False

    @property
    def reads_rows(self) -> Collection[RowKind]:
        """Row statistics to compute from a softmax's scores while the chunks pass."""
        return ()

    def on_call(self, call: AttentionCall) -> Iterable[Piece]:
        """What one attention call adds."""
        return ()

    def on_chunk(self, call: AttentionCall, chunk: Chunk) -> Iterable[Piece]:
        """What a chunk of weights adds; called only if `reads_chunks`."""
        return ()

    def on_rows(self, call: AttentionCall, row_scores: RowScores) -> Iterable[Piece]:
        """What the scores of all rows add, after the last chunk; called only if some observer `reads_rows`."""
        return ()

    def on_hidden(self, hidden: Hidden) -> Iterable[Piece]:
        """What the residual stream at one depth adds; called only if `reads_blocks`."""
        return ()

    def settled(self, sums: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Its sums at one place, reduced once no further pass can add to them.

        Override it to shrink what can only be reduced at the end of a row and is too large to keep for every sample.
        """
        return sums

    @abstractmethod
    def arrays(self, layer: LayerSums) -> dict[str, Array]:
        """Named results of one layer or depth, from its sums; empty if this observer saw nothing there."""

    def describe(self) -> dict[str, Any]:
        """The observer as JSON-able data, for the record."""
        return {"name": type(self).__name__, **asdict(self)}


OBSERVERS: Registry[type[Observer]] = Registry("observer")


@dataclass(frozen=True)
class WeightsObserver(Observer):
    """An observer that reads all attention weights, in chunks, and nothing else."""

    @property
    def reads_weights_alone(self) -> bool:
        return True

    def reads_chunks(self, call: AttentionCall) -> bool:
        return True


def in_every(kind: type[Kind]) -> type[Kind]:
    """Register a built-in class of observers, so that its name is known; other packages use `sinkscope.observer`."""
    OBSERVERS.own[kind.__name__] = kind
    return kind


def every() -> tuple[Observer, ...]:
    """What `observers="all"` takes: one of each registered class, with its defaults."""
    return tuple(kind() for kind in OBSERVERS.values() if kind.in_all)


def divide(sums: Tensor, counts: Tensor | None) -> Tensor:
    """sums / counts, NaN where the count is 0; sums may be shorter than counts (nothing was added there)."""
    if counts is None:
        return torch.full_like(sums, torch.nan)
    if (missing := counts.shape[-1] - sums.shape[-1]) > 0:
        sums = torch.nn.functional.pad(sums, (0, missing))
    return torch.where(counts > 0, sums / counts.clamp(min=1), torch.nan)


Class = TypeVar("Class", bound=type[Observer])


@taking("observer")
def observer(kind: Class) -> Class:
    """Register a class of observers: `@sinkscope.observer` over a frozen dataclass.

    Then `observers="all"` includes it with its defaults, and its class name selects it: `observers=["Mine"]`,
    `sinkscope measure --observers Mine`. Stored measurements can be read without your package. Raises `InputError` for
    a class that is not an `Observer`, one that needs arguments, and a name that is taken.
    """
    check_kind(kind, Observer, "observer", "'all' takes it with its defaults")
    OBSERVERS.add(kind.__name__, kind)
    return kind
