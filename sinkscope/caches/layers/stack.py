"""Full layers side by side: what a decoded token does to each of them is done to all at once."""

from __future__ import annotations

from collections import ChainMap, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.caches.call import wide
from sinkscope.caches.following import Coming
from sinkscope.caches.layers.rectangle import in_heads
from sinkscope.caches.layers.slots import KeptSets, Mark, Part, oldest_of_lowest
from sinkscope.caches.rotation import Rotation


class Stack:
    """Layers that hold what they may, each head as many keys as the other, in one memory; their layers are views of it.

    Of `rows`, (layers · batch, heads, slots, …), one slot more than is kept: between two passes a slot of each head is
    free (`hole`), the last one at first and then that of the key that went. A new key is written there, so nothing is
    moved. Whoever looks at a layer's slots otherwise sees them without the free one (`Slots.settle`).
    """

    def __init__(self, layers: list[KeptSets], query_heads: int, rotation: Rotation | None = None) -> None:
        self.layers, self.mark, self.rotation = layers, Mark(), rotation
        first = layers[0].slots
        batch, heads, used = first["places"].shape
        sizes = len(layers), batch
        with torch.inference_mode(False), torch.no_grad():
            device = first["places"].device
            self._hole = torch.full((*sizes, heads, 1), used, device=device)
            rows: dict[object, Tensor] = {}
            for name in list(first.rows):  # one kind of row after the other: what they were is freed meanwhile
                like = first.rows[name]
                rows[name] = like.new_zeros(*sizes, like.shape[1], used + 1, *like.shape[3:])
                for number, layer in enumerate(layers):
                    rows[name][number, :, :, :used].copy_(layer.slots[name])
                    layer.slots.rows[name] = rows[name][number]
            group = query_heads // heads
            weights = torch.zeros(
                (*sizes, heads, group, 1, used + 1), dtype=wide(first.rows["keys"][:1, :1, :1]).dtype, device=device
            )
            counts = [layer.count for layer in layers if layer.count is not None]
            self.budget = torch.cat(counts)
        self.rows = {name: held.flatten(0, 1) for name, held in rows.items()}
        self.weights, self.hole = weights.flatten(0, 1), self._hole.flatten(0, 1)
        self.samples: dict[object, Tensor] = {}
        for name in layers[0].samples:
            self.keep_samples(name, torch.cat([layer.samples[name] for layer in layers]))
        for number, layer in enumerate(layers):
            layer.slots.hole = hole = self._hole[number]
            keys, values = rows["keys"][number], rows["values"][number]
            into = in_heads(hole, keys), in_heads(hole, values)
            layer.part = Part(self.mark, keys, values, *into, weights[number])

    @property
    def whole(self) -> bool:
        """Whether no layer went its own way since (rows that were chosen, a pass of several tokens)."""
        return all(layer.part is not None and layer.part.mark is self.mark for layer in self.layers)

    def open(self, column: int) -> None:
        """A pass of one token begins, which stands in this column."""
        self.rows["places"].scatter_(2, self.hole, column)

    def __getitem__(self, name: object) -> Tensor:
        return self.rows[name]

    def note(self, name: object, rows: Tensor) -> None:
        """Rows of the new keys."""
        self.rows[name].scatter_(2, in_heads(self.hole, self.rows[name]), rows)

    @property
    def notes(self) -> Mapping[object, Tensor]:
        """Rows of keys and of samples, by note."""
        return ChainMap(self.rows, self.samples)

    def keep_samples(self, name: object, samples: Tensor) -> None:
        """A note of samples, (layers · batch, …); each layer has a view of its part, for when it leaves the stack."""
        self.samples[name] = samples
        for layer, rows in zip(self.layers, samples.chunk(len(self.layers)), strict=True):
            layer.samples[name] = rows

    def close(self, scores: Float[Tensor, "rows heads slots"]) -> None:
        """The pass has run: of each head the key of the lowest score goes, of equal ones the oldest."""
        self.hole.copy_(oldest_of_lowest(scores, self.rows["places"]))
        for layer in self.layers:
            layer.slots.used -= 1
            layer.slots.displaced = True

    def dissolve(self) -> None:
        """Every layer goes its own way."""
        for layer in self.layers:
            if layer.part is not None and layer.part.mark is self.mark:
                layer.leave()


def opened(stacks: list[Stack], coming: Coming) -> list[Stack]:
    """Those of these stacks that the coming pass goes through, opened; none for several tokens."""
    whole = [stack for stack in stacks if coming.queries == 1 and stack.whole]
    for stack in stacks:
        if stack in whole:
            stack.open(coming.seen)
        else:
            stack.dissolve()
    return whole


def stacked(layers: Iterable[tuple[KeptSets, int, Rotation | None]]) -> list[Stack]:
    """Stacks of layers that store alike; with each comes how many query heads it has, and how it turns its keys."""
    alike: dict[tuple[Any, ...], list[KeptSets]] = defaultdict(list)
    for layer, heads, rotation in layers:
        rows = [
            (name, held.shape, held.dtype, held.device) for name, held in (layer.slots.rows | layer.samples).items()
        ]
        alike[heads, rotation, layer.slots.used, *rows].append(layer)
    return [Stack(group, heads, rotation) for (heads, rotation, *_), group in alike.items()]
