"""What is compared: a name, and how to open a cache for a model. Nothing else of a cache is known in this room."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from torch import nn
from transformers import Cache, DynamicCache

from sinkscope.errors import InputError

FULL = "full"
"""The name of the arm that drops nothing; it is part of every comparison."""


@dataclass(frozen=True)
class Arm:
    """One side of a comparison.

    `open(model)` gives a context that yields an empty cache; inside it the model is called with that cache alone.
    `series`: arms of one series differ in their budget, and are drawn as one line. `control`: what the others must
    beat.
    """

    name: str
    open: Callable[[nn.Module], AbstractContextManager[Cache]]
    series: str = ""
    control: bool = False


def arm(name: str, make: Callable[[nn.Module], Cache], series: str = "", *, control: bool = False) -> Arm:
    """An arm whose cache needs no context: `make(model)` builds an empty one."""

    @contextmanager
    def opened(model: nn.Module) -> Iterator[Cache]:
        yield make(model)

    return Arm(name, opened, series or name, control)


def full() -> Arm:
    """transformers' own cache: everything that the model's layers can ever see."""
    return arm(FULL, lambda model: DynamicCache(config=model.config))


def with_full(arms: Sequence[Arm]) -> tuple[Arm, ...]:
    """The arms behind the full cache. Raises `InputError` for two of one name and for another one named `full`."""
    names = [each.name for each in arms]
    if FULL in names:
        raise InputError(f"an arm is named '{FULL}', which is the full cache that every comparison has: rename it")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"two arms are named '{twice}': each needs a name of its own")
    if not arms:
        raise InputError("nothing to compare with the full cache: give at least one arm")
    return (full(), *arms)
