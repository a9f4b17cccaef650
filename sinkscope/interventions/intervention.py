"""What an intervention is: a value that changes a model for as long as a block lasts, and knows its random control."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from sinkscope.errors import InputError
from sinkscope.hooks import unwrapped


@dataclass(frozen=True)
class Intervention(ABC):
    """Base of all interventions. To write one: a frozen dataclass with `attach` and `control`.

    with intervention.applied(model):
        model(**batch)

    Interventions nest, also with `observe` and `measure`, whichever is entered first: what is measured is the changed
    model. Positions count a row's real tokens from 0, in cached decoding too.
    """

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Change `model` inside the block; afterwards, also after an error, it is what it was.

        Models that were compiled run eagerly meanwhile. Raises `InputError` for a layer, head or dimension that does
        not exist, and `UnsupportedModelError` for a family that lacks the place.
        """
        model = unwrapped(model)
        with torch.compiler.set_stance("force_eager"), ExitStack() as stack:
            self.attach(model, stack)
            yield

    @abstractmethod
    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        """Change `model`, and put on `stack` what undoes it."""

    @abstractmethod
    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> Intervention:
        """The same budget spent elsewhere: as many entries, heads or tokens, drawn at random among all others.

        `inputs` are the model's, by name. Raises `InputError` where too few others are left.
        """

    @property
    def positions_named(self) -> tuple[int, ...]:
        """Positions that a row must have for this to do anything."""
        return ()

    def describe(self) -> dict[str, Any]:
        """The intervention as JSON-able data."""
        return {"name": type(self).__name__, **asdict(self)}


@dataclass(frozen=True)
class All(Intervention):
    """Several interventions at once; where two change the same number, the later one has the last word."""

    parts: Sequence[Intervention]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))
        if not self.parts:
            raise InputError("All(()): give at least one intervention")

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        for part in reversed(self.parts):  # the hook that is put on last runs first
            part.attach(model, stack)

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> All:
        return All(tuple(part.control(generator, model, inputs) for part in self.parts))

    @property
    def positions_named(self) -> tuple[int, ...]:
        return tuple(position for part in self.parts for position in part.positions_named)

    def describe(self) -> dict[str, Any]:
        return {"name": "All", "parts": [part.describe() for part in self.parts]}


def whole(what: str, values: Any) -> tuple[int, ...]:
    """A tuple of whole numbers from 0 on without repetition. Raises `InputError` naming `what`."""
    try:
        numbers = tuple(values)
    except TypeError as error:
        raise InputError(f"{what} = {values!r}: expected a sequence of whole numbers") from error
    for value in numbers:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InputError(f"{what} = {values!r}: {value!r} is not a whole number from 0 on")
    if len(set(numbers)) != len(numbers) or not numbers:
        raise InputError(f"{what} = {values!r}: expected different numbers, at least one")
    return numbers


def draw(generator: torch.Generator, choices: Sequence[Any], count: int, what: str) -> tuple[Any, ...]:
    """`count` different choices at random, in their order. Raises `InputError` where there are fewer."""
    if len(choices) < count:
        raise InputError(f"no control: it needs {count} other {what}, and there are {len(choices)}: choose fewer")
    picked = torch.randperm(len(choices), generator=generator)[:count].sort().values
    return tuple(choices[index] for index in picked.tolist())
