"""Interventions: values that change a model inside a context, and know their random control."""

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

    Interventions can be nested, also with `observe` and `measure`, in any order: what is measured is the changed model.
    Positions count the real tokens of a row from 0, in cached decoding too.
    """

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Change `model` inside the context; afterwards, also after an error, it is what it was.

        Compiled models run eagerly meanwhile. Raises `InputError` for a layer, head or dimension that does not exist,
        and `UnsupportedModelError` for a family that has no such place.
        """
        model = unwrapped(model)
        with torch.compiler.set_stance("force_eager"), ExitStack() as stack:
            self.attach(model, stack)
            yield

    @abstractmethod
    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        """Change `model`, and push onto `stack` whatever undoes it."""

    @abstractmethod
    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> Intervention:
        """The same budget elsewhere: as many entries, heads or tokens, drawn at random among all others.

        `inputs`: the model's, by name. Raises `InputError` if too few others are left.
        """

    @property
    def positions_named(self) -> tuple[int, ...]:
        """Positions that a row must have for the intervention to have an effect."""
        return ()

    def describe(self) -> dict[str, Any]:
        """As JSON-able data."""
        return {"name": type(self).__name__, **asdict(self)}


@dataclass(frozen=True)
class All(Intervention):
    """Several interventions at once; if two change the same number, the later one wins."""

    parts: Sequence[Intervention]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))
        if not self.parts:
            raise InputError("All(()): give at least one intervention")

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        for part in reversed(self.parts):  # the hook that is registered last runs first
            part.attach(model, stack)

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> All:
        return All(tuple(part.control(generator, model, inputs) for part in self.parts))

    @property
    def positions_named(self) -> tuple[int, ...]:
        return tuple(position for part in self.parts for position in part.positions_named)

    def describe(self) -> dict[str, Any]:
        return {"name": "All", "parts": [part.describe() for part in self.parts]}


def whole(what: str, values: Any) -> tuple[int, ...]:
    """A tuple of different non-negative integers, at least one. Raises `InputError` naming `what`."""
    try:
        numbers = tuple(values)
    except TypeError as error:
        raise InputError(f"{what} = {values!r}: expected a sequence of whole numbers") from error
    for value in numbers:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InputError(f"{what} = {values!r}: {value!r} is not a non-negative integer")
    if len(set(numbers)) != len(numbers) or not numbers:
        raise InputError(f"{what} = {values!r}: expected different numbers, at least one")
    return numbers


def draw(generator: torch.Generator, choices: Sequence[Any], count: int, what: str) -> tuple[Any, ...]:
    """`count` different choices at random, in their order. Raises `InputError` if there are fewer."""
    if len(choices) < count:
        raise InputError(f"no control: it needs {count} other {what}, and there are {len(choices)}: choose fewer")
    picked = torch.randperm(len(choices), generator=generator)[:count].sort().values
    return tuple(choices[index] for index in picked.tolist())
