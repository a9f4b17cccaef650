"""Observers of other packages."""

from __future__ import annotations

from typing import TypeVar

from sinkscope.probes.observers.observer import OBSERVERS, Observer
from sinkscope.registry import check_kind, taking

Kind = TypeVar("Kind", bound=type[Observer])


@taking("observer")
def observer(kind: Kind) -> Kind:
    """Register a class of observers: `@sinkscope.observer` over a frozen dataclass.

    Then `observers="all"` takes one with its defaults, and its class's name stands for it: `observers=["Mine"]`,
    `sinkscope measure --observers Mine`. What it measured is read without your package. Raises `InputError` for what is
    no `Observer`, for one that cannot be made without arguments, and for a name that is taken.
    """
    check_kind(kind, Observer, "observer", "'all' takes it with its defaults")
    OBSERVERS.add(kind.__name__, kind)
    return kind
