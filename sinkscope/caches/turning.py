"""Rotate the sinks of all layers at once: one operation instead of one per layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Int
from torch import Tensor

from sinkscope.caches.layers import Shown, SinkWindow
from sinkscope.caches.rotation import Rotation

AHEAD = 16  # maximum number of query places for which sinks are rotated at once
Standing = dict[SinkWindow, tuple[Tensor, Tensor]]  # each layer's rotated sinks, as keys and values


@dataclass(frozen=True, eq=False)
class _TurnedAlike:
    """Sinks with the same rotation, (layers, batch, heads, sinks, dim), and their owners: layer, and keys (0) or values
    (1).
    """

    rotation: Rotation
    sinks: Tensor
    owners: list[tuple[int, int]]


@dataclass(eq=False)
class SinkTurner:
    """Rotates the sinks of all layers, stored contiguously for as long as no layer gets other sinks.

    `places`: for how many query places it rotates them at once; the result is small compared with the window.
    """

    places: int = AHEAD
    _sources: list[Tensor] = field(default_factory=list)
    _groups: list[_TurnedAlike] = field(default_factory=list)
    _start: tuple[int, int] = 0, 0
    _ahead: list[Standing] = field(default_factory=list)

    def turned(self, layers: Sequence[SinkWindow], shown: Shown) -> Standing:
        """Keys and values of each layer's sinks, rotated by `shown.by`."""
        held = self._held(layers)
        assert shown.by is not None
        return self._turned(held, shown.by[None])[0]

    def ahead(
        self,
        layers: Sequence[SinkWindow],
        place: int,
        base: int,
        by: Callable[[Int[Tensor, "1 places"]], Int[Tensor, "1 places sinks"]],
    ) -> Standing:
        """The same for a pass of one token at `place` in every row, with positions counted from `base`.

        Usually computed earlier, together with a previous place. `by`: how far sinks are rotated for queries at given
        places.
        """
        held, (start, since) = self._held(layers), self._start
        # Shifts depend on the origin, so a move of it invalidates all of them.
        if since != base or not start <= place < start + len(self._ahead):
            places = torch.arange(place, place + self.places)[None]
            # Shifts: (places, 1, 1, sinks), with axes for batch and heads.
            self._start, self._ahead = (place, base), self._turned(held, (by(places) - base)[0, :, None, None])
        return self._ahead[place - self._start[0]]

    def _held(self, layers: Sequence[SinkWindow]) -> list[SinkWindow]:
        """The layers that have sinks by now."""
        held = [layer for layer in layers if layer.first is not None]
        sources = [tensor for layer in held for tensor in layer.first or ()]
        # By identity: layers replace their sinks and never write into them, and comparing values would wait for a GPU.
        if len(sources) != len(self._sources) or any(a is not b for a, b in zip(sources, self._sources, strict=True)):
            self._groups, self._ahead = _grouped(held), []
            # `_grouped` has replaced the sinks by views; these are what the next comparison sees.
            self._sources = [tensor for layer in held for tensor in layer.first or ()]
        return held

    def _turned(self, held: list[SinkWindow], by: Int[Tensor, "times batch 1 sinks"]) -> list[Standing]:
        """For each of these times."""
        turned = [[list(layer.first or ()) for layer in held] for _ in by]
        for group in self._groups:
            shifts = by.to(group.sinks.device)[:, None]  # against (layers, batch, heads, sinks)
            for time, all_sinks in enumerate(
                group.rotation.turn(group.sinks.expand(len(by), *group.sinks.shape), shifts)
            ):
                for (layer, side), sinks in zip(group.owners, all_sinks.unbind(0), strict=True):
                    turned[time][layer][side] = sinks
        return [{layer: (keys, values) for layer, (keys, values) in zip(held, pairs, strict=True)} for pairs in turned]


def ahead_of(sinks: int, window: int) -> int:
    """Places for which sinks are rotated at once: the result takes at most an eighth of the window's memory."""
    return max(1, min(AHEAD, window // (8 * max(1, sinks))))


def _grouped(layers: Sequence[SinkWindow]) -> list[_TurnedAlike]:
    """Sinks with the same rotation in one contiguous tensor, of which each layer gets a view."""
    owners: dict[tuple, list[tuple[int, int]]] = {}
    for index, layer in enumerate(layers):
        for side, rotation in enumerate((layer.rotation.keys, layer.rotation.values)):
            if rotation is not None and layer.first is not None:
                sinks = layer.first[side]
                owners.setdefault((rotation, sinks.shape, sinks.dtype, sinks.device), []).append((index, side))
    firsts = [list(layer.first or ()) for layer in layers]
    groups = []
    for (rotation, *_), members in owners.items():
        sinks = torch.stack([firsts[layer][side] for layer, side in members])
        for (number, side), view in zip(members, sinks.unbind(0), strict=True):
            firsts[number][side] = view
        groups.append(_TurnedAlike(rotation, sinks, members))
    for layer, (keys, values) in zip(layers, firsts, strict=True):
        layer.first = keys, values
    return groups
