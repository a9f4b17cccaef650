"""Sums of one batch of samples, over all forward passes that continue it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool
from torch import Tensor
from transformers import Cache

from sinkscope.errors import InputError
from sinkscope.probes.calls.forward import Axis, Forward
from sinkscope.probes.observers.observer import LayerSums, Piece
from sinkscope.probes.structure.layers import Layer


@dataclass(frozen=True)
class Depth:
    """A place in the residual stream: before the first block of a stack (index 0) or after its index-th."""

    index: int
    stack: str


Place = Layer | Depth


@dataclass
class PlaceSums:
    """Sums at one place, by observer and name.

    `query`, `key`: the token axes; lengths: how far the positions seen there reach.
    """

    query: Axis
    key: Axis
    causal: bool
    sums: dict[tuple[str, str], Tensor] = field(default_factory=dict)
    query_length: int = 0
    key_length: int = 0

    def add(self, owner: str, piece: Piece, batch: int) -> None:
        """Add a piece of the observer `owner`; positions beyond those seen so far extend the sum."""
        key, start = (owner, piece.name), piece.start or 0
        _, heads, width = piece.values.shape
        total = self.sums.get(key)
        if total is None:
            total = piece.values.new_zeros(batch, heads, start + width)
        elif total.shape[-1] < start + width:
            total = torch.nn.functional.pad(total, (0, start + width - total.shape[-1]))
        total[piece.samples or slice(None), :, start : start + width] += piece.values
        self.sums[key] = total

    def merge(self, other: PlaceSums) -> None:
        """Add what a later pass of the same batch found here."""
        for (owner, name), values in other.sums.items():
            self.add(owner, Piece(name, values), len(values))
        self.query_length = max(self.query_length, other.query_length)
        self.key_length = max(self.key_length, other.key_length)


@dataclass
class Batch:
    """Samples that go through the model together, from their first pass to the last that continues their cache."""

    size: int
    first: int
    length: int = 0
    cache: Cache | None = None
    ids: list[Tensor] = field(default_factory=list)
    real: dict[Axis, Tensor] = field(default_factory=dict)
    places: dict[Place, PlaceSums] = field(default_factory=dict)

    def continues(self, forward: Forward) -> bool:
        """Whether `forward` goes on with this batch's cache. Raises `InputError` where that was changed in between."""
        if forward.seen == 0 or forward.cache is not self.cache or self.cache is None:
            return False
        if forward.seen != self.length or forward.batch != self.size:
            raise InputError(
                f"the cache holds {forward.batch} rows of {forward.seen} tokens, but {self.size} rows of {self.length} "
                "were observed: it was cropped or expanded between two passes (as assisted decoding does), and what "
                "was counted can not be taken back; observe a plain decoding loop"
            )
        return True

    def commit(self, done: Pass, cache: Cache | None) -> None:
        """Take over what a finished pass found, and the cache that it left."""
        lengths = (place.query_length for place in done.places.values() if place.query == "tokens")
        self.cache, self.length = cache, max(lengths, default=done.forward.seen)
        self.real |= done.forward.real
        if done.forward.ids is not None:
            self.ids.append(done.forward.ids.detach())
        for place, sums in done.places.items():
            if place in self.places:
                self.places[place].merge(sums)
            else:
                self.places[place] = sums

    def found(self, place: Place, owner: str) -> LayerSums:
        """An observer's sums at a place, on the CPU, with the real tokens they belong to."""
        sums = self.places[place]
        return LayerSums(
            sums={name: values.cpu() for (of, name), values in sums.sums.items() if of == owner},
            causal=sums.causal,
            queries=self._real(sums.query, sums.query_length),
            keys=self._real(sums.key, sums.key_length),
            first=self.first if sums.query == "tokens" else 0,
        )

    def _real(self, axis: Axis, length: int) -> Bool[Tensor, "batch position"]:
        if axis in self.real:
            return self.real[axis][:, :length].cpu()
        return torch.ones(self.size, length, dtype=torch.bool)


@dataclass
class Pass:
    """What one forward pass has found so far; it counts only when the pass ends without an error."""

    forward: Forward
    batch: Batch
    places: dict[Place, PlaceSums] = field(default_factory=dict)
    uses: dict[object, int] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def use(self, owner: object) -> int:
        """How often `owner` was used before in this pass."""
        count = self.uses.get(owner, 0)
        self.uses[owner] = count + 1
        return count
