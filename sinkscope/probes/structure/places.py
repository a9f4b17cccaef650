"""Where in a model a statistic was taken."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layer:
    """An attention layer as a measurement labels it.

    `name`: path of its module, with `#n` for the n-th further use of a shared module; `index`: the model's own
    `layer_idx`, −1 where it has none; `stack`: decoder, encoder, cross, vision or audio.
    """

    name: str
    index: int
    stack: str


@dataclass(frozen=True)
class Depth:
    """A place in the residual stream: before the first block of a stack (index 0) or after its index-th."""

    index: int
    stack: str


@dataclass(frozen=True)
class ExpertLayer:
    """A mixture-of-experts layer: path of its module; its "heads" are experts."""

    name: str


Place = Layer | Depth | ExpertLayer
