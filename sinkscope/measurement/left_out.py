"""What of a model has no numbers, and why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks import Layer
from sinkscope.measurement.observers.observer import Observer

_NUMBER = re.compile(r"\.\d+(?=\.|$)")


def kind(layer: Layer) -> str:
    """The layers that are like this one: its path with every number replaced by a star."""
    return starred(layer.name.partition("#")[0])


def starred(path: str) -> str:
    """A path with every number replaced by a star."""
    return _NUMBER.sub(".*", path)


@dataclass
class LeftOut:
    """Layers by their kind, and residual streams by their stack, that were not read, with the reason.

    `refused`: kinds of layers among them whose keys are no tokens; of a kind all layers are left out or none.
    """

    layers: dict[str, str] = field(default_factory=dict)
    streams: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def add(self, other: LeftOut) -> None:
        """What a finished pass left out."""
        self.layers |= other.layers
        self.streams |= other.streams
        self.refused |= other.refused

    def holds(self, layer: Layer) -> bool:
        """Whether a layer is left out."""
        return kind(layer) in self.layers or kind(layer) in self.refused

    def named(self, layers: Iterable[Layer], called: Iterable[Layer]) -> dict[str, str]:
        """The reasons by stack; by the layers themselves in a stack of which others have numbers."""
        return _layers(self.layers | self.refused, layers, called) | {
            f"residual stream of {stack}": reason for stack, reason in self.streams.items()
        }


def _layers(reasons: Mapping[str, str], layers: Iterable[Layer], called: Iterable[Layer]) -> dict[str, str]:
    stacks = {kind(layer): layer.stack for layer in layers}
    numbered = {layer.stack for layer in called if kind(layer) not in reasons}
    found: dict[str, str] = {}
    for name, reason in reasons.items():
        stack = stacks.get(name, name)
        found[name if stack in numbered else stack] = reason
    return found


def applicable(observers: Sequence[Observer], model: nn.Module) -> tuple[tuple[Observer, ...], dict[str, str]]:
    """The observers with what they need of the model, and those that lack it, with the reason.

    Raises `UnsupportedModelError` where none is left.
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
