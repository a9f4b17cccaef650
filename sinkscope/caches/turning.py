"""The sinks of all layers, turned at once: one operation instead of one for each layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Int
from torch import Tensor

from sinkscope.caches.layers import Shown, SinkWindow
from sinkscope.caches.rotation import Rotation

AHEAD = 16  # places at most for which sinks are turned in one go, where they are known
Standing = dict[SinkWindow, tuple[Tensor, Tensor]]  # keys and values of each layer's sinks, turned


@dataclass(frozen=True, eq=False)
class _Group:
    """Sinks that are turned alike, (layers, batch, heads, sinks, dim), and whose they are: layer and part."""

    rotation: Rotation
    sinks: Tensor
    owners: list[tuple[int, int]]


@dataclass(eq=False)
class Together:
    """Turns the sinks of layers; keeps them side by side for as long as no layer has others.

    `places` for which it turns them in one go: what it then holds is small beside the window.
    """

    places: int = AHEAD
    _sources: list[Tensor] = field(default_factory=list)
    _groups: list[_Group] = field(default_factory=list)
    _start: tuple[int, int] = 0, 0
    _ahead: list[Standing] = field(default_factory=list)

    def turned(self, layers: Sequence[SinkWindow], shown: Shown) -> Standing:
        """Keys and values of each layer's sinks, turned by `shown.by`."""
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

        Most often it was made with that of a place before. `by`: how far sinks are turned for queries at places.
        """
        held, (start, since) = self._held(layers), self._start
        if since != base or not start <= place < start + len(self._ahead):
            places = torch.arange(place, place + self.places)[None]
            self._start, self._ahead = (place, base), self._turned(held, (by(places) - base)[0, :, None, None])
        return self._ahead[place - self._start[0]]

    def _held(self, layers: Sequence[SinkWindow]) -> list[SinkWindow]:
        """The layers that have sinks by now."""
        held = [layer for layer in layers if layer.first is not None]
        sources = [tensor for layer in held for tensor in layer.first or ()]
        if len(sources) != len(self._sources) or any(a is not b for a, b in zip(sources, self._sources, strict=True)):
            self._groups, self._ahead = _grouped(held), []
            self._sources = [tensor for layer in held for tensor in layer.first or ()]
        return held

    def _turned(self, held: list[SinkWindow], by: Int[Tensor, "times batch 1 sinks"]) -> list[Standing]:
        """For each of these times."""
        found = [[list(layer.first or ()) for layer in held] for _ in by]
        for group in self._groups:
            shifts = by.to(group.sinks.device)[:, None]  # against (layers, batch, heads, sinks)
            for time, all_sinks in enumerate(
                group.rotation.turn(group.sinks.expand(len(by), *group.sinks.shape), shifts)
            ):
                for (layer, part), sinks in zip(group.owners, all_sinks.unbind(0), strict=True):
                    found[time][layer][part] = sinks
        return [{layer: (keys, values) for layer, (keys, values) in zip(held, parts, strict=True)} for parts in found]


def ahead_of(sinks: int, window: int) -> int:
    """Places for which sinks are turned at once: what they take is at most an eighth of the window."""
    return max(1, min(AHEAD, window // (8 * max(1, sinks))))


def _grouped(layers: Sequence[SinkWindow]) -> list[_Group]:
    """Layers whose sinks are turned alike, side by side in one memory, of which each layer has a view from now on."""
    owners: dict[tuple, list[tuple[int, int]]] = {}
    for index, layer in enumerate(layers):
        for part, rotation in enumerate((layer.rotation.keys, layer.rotation.values)):
            if rotation is not None and layer.first is not None:
                sinks = layer.first[part]
                owners.setdefault((rotation, sinks.shape, sinks.dtype, sinks.device), []).append((index, part))
    firsts = [list(layer.first or ()) for layer in layers]
    groups = []
    for (rotation, *_), own in owners.items():
        sinks = torch.stack([firsts[layer][part] for layer, part in own])
        for (number, side), view in zip(own, sinks.unbind(0), strict=True):
            firsts[number][side] = view
        groups.append(_Group(rotation, sinks, own))
    for layer, (keys, values) in zip(layers, firsts, strict=True):
        layer.first = keys, values
    return groups
