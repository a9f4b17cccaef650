"""The sums of one batch of samples over all forward passes that continue it, and what could not be read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional
from transformers import Cache

from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks import Axis, Depth, Forward, Layer, Place, Samples
from sinkscope.measurement.calls.call import AttentionCall
from sinkscope.measurement.calls.masks import KINDS, Bound, Rule, VisibleKeys, WrittenMasks
from sinkscope.measurement.calls.reading import Known
from sinkscope.measurement.observers.observer import LayerSums, Observer, Piece, Reduction

_NUMBER = re.compile(r"\.\d+(?=\.|$)")


def kind(layer: Layer) -> str:
    """The kind of a layer: its path with every number replaced by a star."""
    return starred(layer.name.partition("#")[0])


def starred(path: str) -> str:
    """A path with every number replaced by a star."""
    return _NUMBER.sub(".*", path)


@dataclass
class LeftOut:
    """Layers (by kind) and residual streams (by stack) that were not read, with the reason.

    `refused`: kinds of layers whose keys are not tokens. All layers of a kind are left out, or none.
    """

    layers: dict[str, str] = field(default_factory=dict)
    streams: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def add(self, other: LeftOut) -> None:
        """Add what a finished pass left out."""
        self.layers |= other.layers
        self.streams |= other.streams
        self.refused |= other.refused

    def holds(self, layer: Layer) -> bool:
        """Whether a layer is left out."""
        return kind(layer) in self.layers or kind(layer) in self.refused

    def named(self, layers: Iterable[Layer], called: Iterable[Layer]) -> dict[str, str]:
        """The reasons by stack, or by layer if other layers of the stack have numbers."""
        return _layers(self.layers | self.refused, layers, called) | {
            f"residual stream of {stack}": reason for stack, reason in self.streams.items()
        }


def _layers(reasons: Mapping[str, str], layers: Iterable[Layer], called: Iterable[Layer]) -> dict[str, str]:
    stacks = {kind(layer): layer.stack for layer in layers}
    numbered = {layer.stack for layer in called if kind(layer) not in reasons}
    named: dict[str, str] = {}
    for name, reason in reasons.items():
        stack = stacks.get(name, name)
        named[name if stack in numbered else stack] = reason
    return named


def applicable(observers: Sequence[Observer], model: nn.Module) -> tuple[tuple[Observer, ...], dict[str, str]]:
    """The observers bound to the model, and the reasons for those that cannot read it.

    Raises `UnsupportedModelError` if none is left.
    """
    bound: list[Observer] = []
    reasons: dict[str, str] = {}
    for observer in observers:
        try:
            bound.append(observer.bound(model))
        except UnsupportedModelError as error:
            reasons[type(observer).__name__] = str(error)
    if not bound:
        raise UnsupportedModelError(next(iter(reasons.values())))
    return tuple(bound), reasons


# How many queries see each key, what uniform attention would give it, and whether any query sees a later key.
#
# This is read from the masks, whatever is observed. Rules cost O(T), written masks O(T²) once per pass.

Sums = Float[Tensor, "#batch heads key"]


@dataclass(frozen=True, eq=False)
class Seen:
    """Σ_t [t sees k] and Σ_t [t sees k] / n_t over the real queries t of a call, n_t the number of keys that t sees.

    Slots do not count. Only masks decide: keys that a sparse-attention index did not select are hidden, because the
    layer's mask hides them; a weight of 0 hides nothing. The head axis has length 1 if all heads share the mask.
    `ahead`: whether a query sees a key that comes after it.
    """

    queries: Sums
    uniform: Sums
    ahead: bool


@dataclass
class SeenKeys:
    """`Seen` for the calls of one pass, computed once for layers that share a mask."""

    _known: dict[tuple[int, str, int], tuple[object, Seen]] = field(default_factory=dict)

    def of(self, call: AttentionCall, shared: bool) -> Seen:
        """`shared`: whether the keys are the queries' own tokens; if not, every key counts as later."""
        if isinstance(call.mask, Rule):
            return _of_rule(call, call.mask, shared)
        source: object = call.mask.visibility if isinstance(call.mask, Bound) else call.mask
        place = (id(source), call.layer.stack, call.query_start)
        if place not in self._known:
            while len(self._known) >= KINDS:
                self._known.pop(next(iter(self._known)))
            # Held as well, so that its id is not reused while the entry lives.
            self._known[place] = source, _of_mask(call, call.mask, shared)
        return self._known[place][1]


def _of_rule(call: AttentionCall, mask: Rule, shared: bool) -> Seen:
    place = torch.arange(call.query.shape[2], device=call.query.device)[None] + mask.start
    first = torch.zeros_like(place) if mask.window is None else place - mask.window + 1
    stop = place + 1 if mask.causal else torch.full_like(place, mask.keys)
    if mask.window is not None and not mask.causal:
        stop = place + mask.window
    return _of_spans(call, first, stop, mask.padding, shared)


def _of_mask(call: AttentionCall, mask: VisibleKeys, shared: bool) -> Seen:
    if isinstance(mask, Bound):
        visibility = mask.visibility
        spans = visibility.spans
        if spans is not None and visibility.mask.solid(visibility.query, visibility.key):
            return _of_spans(call, *spans, visibility.key.valid, shared)
    return _sum(call, _parts(call, mask), shared)


def _parts(call: AttentionCall, mask: VisibleKeys) -> Iterator[tuple[slice, slice, slice, Tensor]]:
    for samples, rows in call.parts():
        columns = mask.extent(samples, rows)
        yield samples, rows, columns, mask.visible(samples, rows, columns).to(call.query.device)


def _of_spans(
    call: AttentionCall,
    first: Int[Tensor, "#batch query"],
    stop: Int[Tensor, "#batch query"],
    padding: Bool[Tensor, "#batch key"] | None,
    shared: bool,
) -> Seen:
    """`Seen` if each query sees the keys `first` … `stop` − 1 except padding: cumulative sums of differences, O(T)."""
    device, keys = call.query.device, call.mask.keys
    first, stop = first.to(device).clamp(0, keys), stop.to(device).clamp(0, keys)
    real = torch.ones(1, keys, dtype=torch.bool, device=device) if padding is None else padding.to(device)
    # before[k] real keys are in front of column k, so the span first … stop − 1 holds before[stop] − before[first].
    before = functional.pad(real.long().cumsum(-1), (1, 0))
    rows = max(len(first), len(before), 1 if call.real is None else len(call.real))
    first, stop, before = (each.expand(rows, -1) for each in (first, stop, before))
    counts = before.gather(1, stop) - before.gather(1, first)
    counted = counts > 0 if call.real is None else (counts > 0) & call.real
    sums = []
    for values in (counted.double(), counted / counts.clamp(min=1).double()):
        # +v where a span begins, −v where it has ended: the running sum is Σ_t v_t [t sees k], in float64, because it
        # grows with T and comes down again.
        edges = values.new_zeros(rows, keys + 1).scatter_add(1, first, values).scatter_add_(1, stop, -values)
        sums.append((edges.cumsum(-1)[:, :keys] * real).float()[:, None])
    if shared and isinstance(call.mask, Rule) and call.mask.causal:
        return Seen(sums[0], sums[1], False)
    later = (_place(call) + 1).clamp(max=keys).expand(rows, -1)
    ahead = not shared or bool(((before.gather(1, stop) > before.gather(1, later)) & counted).any())
    return Seen(sums[0], sums[1], ahead)


def _sum(call: AttentionCall, parts: Iterator[tuple[slice, slice, slice, Tensor]], shared: bool) -> Seen:
    queries = uniform = None
    ahead, place = not shared, _place(call)[0]
    for samples, rows, columns, part in parts:
        visible = part if call.real is None else part & call.real[samples, None, rows, None]
        counts = visible.sum(-1, keepdim=True).clamp(min=1)
        if queries is None or uniform is None:
            size = len(call.query), visible.shape[1], call.mask.keys
            queries, uniform = (torch.zeros(size, dtype=torch.float64, device=visible.device) for _ in range(2))
        queries[samples, :, columns] += visible.sum(-2)
        uniform[samples, :, columns] += (visible / counts.double()).sum(-2)
        if not ahead:
            index = torch.arange(columns.start, columns.stop, device=visible.device)
            ahead = bool((visible & (index > place[rows, None])).any())
    assert queries is not None
    assert uniform is not None
    return Seen(queries.float(), uniform.float(), ahead)


def _place(call: AttentionCall) -> Int[Tensor, "1 query"]:
    """The index of each query among the keys of a self-attention call."""
    start = call.query_start - call.key_start
    return torch.arange(start, start + call.query.shape[2], device=call.query.device)[None]


BLOCK = 2**21  # bytes; the system allocates only what is written to
LINE = 64  # bytes; tensors start at multiples of it, as torch's own do


@dataclass(eq=False)
class Shelf:
    """Storage for tensors that are kept, side by side in large blocks.

    Small tensors that are kept between the large, short-lived ones of forward passes fragment memory: over 10,000 short
    samples it grew fourteen times as fast as the sums.
    """

    _block: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))
    _taken: int = 0

    def put(self, value: Tensor) -> Tensor:
        """A copy of `value` in the block; a tensor on another device than the CPU is returned unchanged."""
        if value.device.type != "cpu":
            return value
        size = value.numel() * value.element_size()
        if self._taken + size > len(self._block):
            self._block, self._taken = torch.empty(max(BLOCK, size), dtype=torch.uint8), 0
        place = self._block[self._taken : self._taken + size].view(value.dtype).view(value.shape)
        self._taken += -(-size // LINE) * LINE
        return place.copy_(value)


MASKS = "masks"  # the owner of sums that are read from masks


@dataclass
class PlaceSums:
    """Sums at one place, by observer and name.

    `query`, `key`: the token axes; `query_length`, `key_length`: number of positions so far; `real_queries`,
    `real_keys`: False for padding, None if all are real. `causal`: whether the layer's last call was causal; `ahead`:
    whether any query so far saw a later key.
    """

    query: Axis
    key: Axis
    causal: bool
    ahead: bool = False
    real_queries: Bool[Tensor, "batch _"] | None = None
    real_keys: Bool[Tensor, "batch _"] | None = None
    sums: dict[tuple[str, str], Tensor] = field(default_factory=dict)
    reductions: dict[tuple[str, str], Reduction] = field(default_factory=dict)
    query_length: int = 0
    key_length: int = 0

    def see(self, seen: Seen, start: int, batch: int) -> None:
        """Add the counts from one call's mask; its first key is at position `start`."""
        self.ahead |= seen.ahead
        for name, values in (("seen", seen.queries), ("uniform", seen.uniform)):
            self.add(MASKS, Piece(name, values, start), batch)

    @property
    def observed(self) -> bool:
        """Whether an observer saw something here."""
        return any(owner != MASKS for owner, _ in self.sums)

    def add(self, owner: str, piece: Piece, batch: int) -> None:
        """Add a piece of the observer `owner`; positions beyond those seen so far extend the sum."""
        key, values, start = (owner, piece.name), piece.values, piece.start or 0
        self.reductions[key] = piece.reduction
        length = values.shape[2] if values.ndim > 2 else None
        total = self._wide_enough(key, piece, batch, 0 if length is None else start + length)
        # `part` is a view throughout, so that adding to it changes the sum.
        part = total
        if piece.samples is not None and piece.samples.indices(len(total)) != (0, len(total), 1):
            part = total[piece.samples]
        if length is not None and part.shape[2] != length:
            part = part.narrow(2, start, length)
        if piece.reduction == "sum":
            part.add_(values)
        else:
            torch.maximum(part, values, out=part)

    def _wide_enough(self, key: tuple[str, str], piece: Piece, batch: int, stop: int) -> Tensor:
        """The sum so far, extended to position `stop` if it is shorter; an empty sum for the first piece."""
        values, total = piece.values, self.sums.get(key)
        if total is not None and total.shape[1] < values.shape[1]:  # one entry for all heads so far
            total = self.sums[key] = total.expand(-1, values.shape[1], *total.shape[2:]).clone()
        empty = 0.0 if piece.reduction == "sum" else -torch.inf
        if total is None:
            lengths = [stop, *values.shape[3:]] if values.ndim > 2 else []
            total = values.new_full([batch, values.shape[1], *lengths], empty)
        elif stop and total.shape[2] < stop:
            more = [*total.shape[:2], stop - total.shape[2], *total.shape[3:]]
            total = torch.cat([total, total.new_full(more, empty)], 2)
        elif total.is_inference() and not torch.is_inference_mode_enabled():
            total = total.clone()  # an inference tensor can only be written to in inference mode
        else:
            return total
        self.sums[key] = total
        return total

    def broken_rows(self, batch: int) -> Bool[Tensor, "batch"]:
        """Samples with a NaN or an infinity; an empty maximum (−inf) is not one."""
        broken = torch.zeros(batch, dtype=torch.bool)
        for key, values in self.sums.items():
            if math.isfinite(values.sum()):  # the usual case: then all entries are finite
                continue
            bad = ~torch.isfinite(values)
            if self.reductions[key] == "max":
                bad &= values != -torch.inf
            broken |= bad.flatten(1).any(1).cpu()
        return broken

    def merge(self, other: PlaceSums) -> None:
        """Add the sums of a later pass of the same batch."""
        for (owner, name), values in other.sums.items():
            self.add(owner, Piece(name, values, reduction=other.reductions[owner, name]), len(values))
        self.causal, self.ahead = other.causal, self.ahead or other.ahead
        # Those of the later pass cover all tokens so far.
        self.real_queries, self.real_keys = other.real_queries, other.real_keys
        self.query_length = max(self.query_length, other.query_length)
        self.key_length = max(self.key_length, other.key_length)

    def settle(self, observer: Observer) -> None:
        """Let an observer shrink its sums once nothing will be added."""
        owner = type(observer).__name__
        mine = {name: values for (of, name), values in self.sums.items() if of == owner}
        settled = observer.settled(mine)
        for name in mine.keys() - settled.keys():
            del self.sums[owner, name], self.reductions[owner, name]
        for name in settled.keys() - mine.keys():
            self.sums[owner, name], self.reductions[owner, name] = settled[name], "sum"


@dataclass(eq=False)
class Batch(Samples):
    """Samples that go through the model together, with all sums over them.

    `index`: their numbers among the samples of the measurement; `row`, `start`: the row of each sample, and its first
    real token there: packed documents are separate samples.
    """

    places: dict[Place, PlaceSums] = field(default_factory=dict)
    index: tuple[int, ...] = ()
    row: tuple[int, ...] = ()
    start: tuple[int, ...] = ()

    def commit(self, done: OpenPass, cache: Cache | None) -> None:
        """Merge the sums of a finished pass, and keep its cache."""
        lengths = (place.query_length for place in done.places.values() if place.query == "tokens")
        self.extend(done.forward, max(lengths, default=done.forward.seen), cache)
        for place, sums in done.places.items():
            if place in self.places:
                self.places[place].merge(sums)
            else:
                self.places[place] = sums

    def settle(self, observers: Sequence[Observer], shelf: Shelf) -> None:
        """Shrink the sums and release the cache; called when no further pass can continue this batch."""
        self.cache = None
        for sums in self.places.values():
            for observer in observers:
                sums.settle(observer)
            sums.sums = {key: shelf.put(values) for key, values in sums.sums.items()}

    def sums_by_observer(self, place: Place) -> Iterator[tuple[str, LayerSums]]:
        """The sums at a place by observer, on the CPU, with the masks of real tokens."""
        sums = self.places[place]
        queries, keys = self.queries(place), self.keys(place)
        first = self.first if sums.query == "tokens" else 0
        by_owner: dict[str, dict[str, Tensor]] = {}
        for (owner, name), values in sums.sums.items():
            by_owner.setdefault(owner, {})[name] = values.cpu()
        visible = by_owner.pop(MASKS, {}).get("seen")
        for owner, of_owner in by_owner.items():
            yield owner, LayerSums(of_owner, queries, keys, first, visible)

    def visible(self, layer: Layer) -> tuple[Tensor, Tensor] | None:
        """Per key, the number of a layer's queries that see it, and the mass it would receive from uniform
        attention.
        """
        sums = {} if layer not in self.places else self.places[layer].sums
        if (MASKS, "seen") not in sums:
            return None
        return sums[MASKS, "seen"].cpu(), sums[MASKS, "uniform"].cpu()

    def query_count(self, layer: Layer) -> np.ndarray:
        """Real queries of each sample that were observed; 0 where the layer did not run."""
        if layer not in self.places:
            return np.zeros(self.size, np.int64)
        first = self.first if self.places[layer].query == "tokens" else 0
        return self.queries(layer)[:, first:].sum(-1).numpy()

    def most_queries(self, layer: Layer) -> np.ndarray:
        """The largest number of queries that see any one key, per sample; 0 where the layer did not run."""
        if (sums := self.visible(layer)) is None:
            return np.zeros(self.size, np.int64)
        return sums[0].amax((1, 2)).round().long().numpy()

    def queries(self, place: Place) -> Bool[Tensor, "batch query"]:
        """Which queries there are real tokens."""
        return self._real(self.places[place].real_queries, self.places[place].query_length)

    def keys(self, place: Place) -> Bool[Tensor, "batch key"]:
        """Which keys there are real tokens."""
        return self._real(self.places[place].real_keys, self.places[place].key_length)

    def _real(self, real: Tensor | None, length: int) -> Bool[Tensor, "batch position"]:
        return torch.ones(self.size, length, dtype=torch.bool) if real is None else real[:, :length].cpu()


@dataclass
class OpenPass:
    """The sums of one forward pass; they count only if the pass ends without an error.

    `samples_before`: samples of the measurement before this batch; `left_out`: what was not read, and why; `unmasked`:
    stacks that attend to everything although the model was given a mask; `masks`: the layers' masks; `seen`: their
    counts; `attended`: real tokens of each stack according to its self-attention (None: all); `assumed`: those with
    which its residual stream was read.
    """

    forward: Forward
    batch: Batch
    samples_before: int = 0
    places: dict[Place, PlaceSums] = field(default_factory=dict)
    left_out: LeftOut = field(default_factory=LeftOut)
    unmasked: dict[str, str] = field(default_factory=dict)
    masks: WrittenMasks = field(default_factory=WrittenMasks)
    seen: SeenKeys = field(default_factory=SeenKeys)
    attended: dict[str, Tensor | None] = field(default_factory=dict)
    assumed: dict[str, Tensor | None] = field(default_factory=dict)

    def place(self, place: Place, query: Axis, key: Axis, causal: bool) -> PlaceSums:
        """The sums at a place, created on first use; `causal` is overwritten by each call."""
        sums = self.places.setdefault(place, PlaceSums(query, key, causal))
        sums.causal = causal
        return sums

    def known(self, layer: Layer) -> Known | None:
        """What earlier passes over these samples showed about a layer."""
        sums = self.batch.places.get(layer)
        return None if sums is None else Known(sums.causal, sums.real_keys)

    def real(self, stack: str, side: Axis, stop: int, mask: Tensor | None) -> Tensor | None:
        """Which of a stack's `stop` tokens are real; None where all are.

        Known from the inputs, else from its attention, else from the `mask` given to its first block.
        """
        if self.forward.stated(side, stop):
            return self.forward.real.get(side)
        attended = self.attended.get(stack)
        if stack in self.attended and (attended is None or attended.shape[1] == stop):
            return attended
        if mask is not None and mask.ndim == 4 and mask.shape[-1] == stop:
            seen = self.masks.of(mask, mask.shape[2], stop).keys_seen
            return None if seen is None else seen.expand(self.forward.batch, -1)
        if mask is not None and mask.shape == (self.forward.batch, stop):
            return mask.bool()
        return None

    def drop_stream(self, stack: str, reason: str) -> None:
        """Forget the residual stream of a stack."""
        self.left_out.streams[stack] = reason
        for place in [place for place in self.places if isinstance(place, Depth) and place.stack == stack]:
            del self.places[place]

    def note_unused_masks(self) -> None:
        """Note masks that were given to the model but hide nothing in any layer."""
        layers = [sums for place, sums in self.places.items() if isinstance(place, Layer)]
        if layers and all(sums.real_keys is None or bool(sums.real_keys.all()) for sums in layers):
            self.unmasked |= dict.fromkeys(self.forward.other_masks, "no layer hides anything of what it hides")

    def drop_misread(self) -> None:
        """Forget the residual stream of stacks that was read with the wrong tokens as real."""
        for stack in self.assumed.keys() & self.attended.keys():
            if not _same(self.assumed[stack], self.attended[stack]):
                self.drop_stream(stack, "which of its tokens are real is told too late")


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    if all(real is None or bool(real.all()) for real in (one, other)):
        return True
    return one is not None and other is not None and torch.equal(one.cpu(), other.cpu())
