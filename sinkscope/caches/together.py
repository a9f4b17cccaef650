"""The sinks of all layers, turned at once: one operation instead of one for each layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sinkscope.caches.layers import Shown, SinkWindow
from sinkscope.caches.rotation import Rotation


@dataclass(frozen=True, eq=False)
class _Group:
    """Sinks that are turned alike, (layers, batch, heads, sinks, dim), and whose they are: layer and part."""

    rotation: Rotation
    sinks: Tensor
    owners: list[tuple[int, int]]


@dataclass(eq=False)
class Together:
    """Turns the sinks of layers; keeps them side by side for as long as no layer has others."""

    _sources: list[Tensor] = field(default_factory=list)
    _groups: list[_Group] = field(default_factory=list)

    def turned(self, layers: Sequence[SinkWindow], shown: Shown) -> dict[SinkWindow, tuple[Tensor, Tensor]]:
        """Keys and values of each layer's sinks, turned by `shown.by`."""
        held = [layer for layer in layers if layer.first is not None]
        sources = [tensor for layer in held for tensor in layer.first or ()]
        if len(sources) != len(self._sources) or any(a is not b for a, b in zip(sources, self._sources, strict=True)):
            self._sources, self._groups = sources, _grouped(held)
        found = [list(layer.first or ()) for layer in held]
        assert shown.by is not None
        for group in self._groups:
            by = shown.by.to(group.sinks.device)  # (batch or 1, 1, sinks), against (layers, batch, heads, sinks)
            for (layer, part), sinks in zip(group.owners, group.rotation.turn(group.sinks, by), strict=True):
                found[layer][part] = sinks
        return {layer: (keys, values) for layer, (keys, values) in zip(held, found, strict=True)}


def _grouped(layers: Sequence[SinkWindow]) -> list[_Group]:
    owners: dict[tuple, list[tuple[int, int]]] = {}
    for index, layer in enumerate(layers):
        for part, rotation in enumerate((layer.rotation.keys, layer.rotation.values)):
            if rotation is not None and layer.first is not None:
                sinks = layer.first[part]
                owners.setdefault((rotation, sinks.shape, sinks.dtype, sinks.device), []).append((index, part))
    firsts = [layer.first or () for layer in layers]
    return [
        _Group(rotation, torch.stack([firsts[layer][part] for layer, part in own]), own)
        for (rotation, *_), own in owners.items()
    ]
