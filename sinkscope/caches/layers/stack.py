"""Full layers in one memory: what a decoded token does to each of them is done to all at once."""

from __future__ import annotations

from collections import ChainMap, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.attention.scores import wide
from sinkscope.caches.following import Coming
from sinkscope.caches.layers.rectangle import in_heads
from sinkscope.caches.layers.slots import KeptSets, StackView, oldest_of_lowest
from sinkscope.caches.rotation import Rotation


class Stack:
    """Layers whose heads all hold the same number of keys, in one memory of which the layers are views.

    `rows`, (layers · batch, heads, slots, …), have one slot more than is kept. Between passes one slot of each head is
    free (`hole`): the last at first, later the slot of the key evicted last. The next key is written there, so nothing
    moves. Reading a layer's slots in any other way first moves the free slot to the end (`Slots.settle`).
    """

    def __init__(self, layers: list[KeptSets], query_heads: int, rotation: Rotation | None = None) -> None:
        self.layers, self.rotation = layers, rotation
        self.identity = object()  # views refer to it: a circle of references to the stack would keep freed caches alive
        first = layers[0].slots
        batch, heads, used = first["places"].shape
        sizes = len(layers), batch
        with torch.inference_mode(False), torch.no_grad():
            device = first["places"].device
            self._hole = torch.full((*sizes, heads, 1), used, device=device)
            rows: dict[object, Tensor] = {}
            for name in list(first.rows):  # name by name, so that the old rows are freed in between
                like = first.rows[name]
                rows[name] = like.new_zeros(*sizes, like.shape[1], used + 1, *like.shape[3:])
                for number, layer in enumerate(layers):
                    rows[name][number, :, :, :used].copy_(layer.slots[name])
                    layer.slots.rows[name] = rows[name][number]
            group = query_heads // heads
            # A single key is enough to learn the dtype; `wide` would convert all of them.
            weights = torch.zeros(
                (*sizes, heads, group, 1, used + 1), dtype=wide(first.rows["keys"][:1, :1, :1]).dtype, device=device
            )
            counts = [layer.count for layer in layers if layer.count is not None]
            self.budget = torch.cat(counts)
        # Views of the memory that the layers' slots are views of.
        self.rows = {name: stored.flatten(0, 1) for name, stored in rows.items()}
        self.weights, self.hole = weights.flatten(0, 1), self._hole.flatten(0, 1)
        self.samples: dict[object, Tensor] = {}
        for name in layers[0].samples:
            self.keep_samples(name, torch.cat([layer.samples[name] for layer in layers]))
        for number, layer in enumerate(layers):
            layer.slots.hole = hole = self._hole[number]
            keys, values = rows["keys"][number], rows["values"][number]
            # Views of the hole too: `close` moves it in place, and each layer's next key follows.
            into = in_heads(hole, keys), in_heads(hole, values)
            layer.view = StackView(self.identity, keys, values, *into, weights[number])

    @property
    def whole(self) -> bool:
        """Whether no layer has left the stack (because rows were selected, or a pass had several tokens)."""
        return all(layer.view is not None and layer.view.stack is self.identity for layer in self.layers)

    def open(self, column: int) -> None:
        """Begin a pass of one token, in this column."""
        self.rows["places"].scatter_(2, self.hole, column)

    def __getitem__(self, name: object) -> Tensor:
        return self.rows[name]

    def note(self, name: object, rows: Tensor) -> None:
        """Set the rows of the new keys."""
        self.rows[name].scatter_(2, in_heads(self.hole, self.rows[name]), rows)

    @property
    def notes(self) -> Mapping[object, Tensor]:
        """Rows of keys and of samples, by note."""
        return ChainMap(self.rows, self.samples)

    def keep_samples(self, name: object, samples: Tensor) -> None:
        """Store a note of samples, (layers · batch, …). Each layer has a view of its part, for when it leaves."""
        self.samples[name] = samples
        for layer, rows in zip(self.layers, samples.chunk(len(self.layers)), strict=True):
            layer.samples[name] = rows

    def close(self, scores: Float[Tensor, "rows heads slots"]) -> None:
        """End the pass: in each head, evict the key of the lowest score, the oldest among equals."""
        self.hole.copy_(oldest_of_lowest(scores, self.rows["places"]))
        for layer in self.layers:
            layer.slots.used -= 1
            layer.slots.displaced = True

    def dissolve(self) -> None:
        """Release all layers."""
        for layer in self.layers:
            if layer.view is not None and layer.view.stack is self.identity:
                layer.leave()


def opened(stacks: list[Stack], coming: Coming) -> list[Stack]:
    """The stacks that the coming pass can use, opened. All others are dissolved, as are all before a pass of several
    tokens.
    """
    whole = [stack for stack in stacks if coming.queries == 1 and stack.whole]
    for stack in stacks:
        if stack in whole:
            stack.open(coming.seen)
        else:
            stack.dissolve()
    return whole


def stacked(layers: Iterable[tuple[KeptSets, int, Rotation | None]]) -> list[Stack]:
    """Stacks of layers with the same shapes. Each layer comes with its number of query heads and its rotation."""
    alike: dict[tuple[Any, ...], list[KeptSets]] = defaultdict(list)
    for layer, heads, rotation in layers:
        rows = [
            (name, stored.shape, stored.dtype, stored.device)
            for name, stored in (layer.slots.rows | layer.samples).items()
        ]
        alike[heads, rotation, layer.slots.used, *rows].append(layer)
    return [Stack(group, heads, rotation) for (heads, rotation, *_), group in alike.items()]
