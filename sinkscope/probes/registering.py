"""Observers of other packages."""

from __future__ import annotations

import inspect
from typing import TypeVar

from sinkscope.errors import InputError
from sinkscope.probes.observers.observer import OBSERVERS, Observer
from sinkscope.registry import taking

Kind = TypeVar("Kind", bound=type[Observer])


@taking("observer")
def observer(kind: Kind) -> Kind:
    """Register a class of observers: `@sinkscope.observer` over a frozen dataclass.

    Then `observers="all"` takes one with its defaults, and its class's name stands for it: `observers=["Mine"]`,
    `sinkscope measure --observers Mine`. What it measured is read without your package. Raises `InputError` for what is
    no `Observer`, for one that cannot be made without arguments, and for a name that is taken.
    """
    if not (isinstance(kind, type) and issubclass(kind, Observer)):
        raise InputError(f"@sinkscope.observer decorates a subclass of sinkscope.probes.Observer, got {kind!r}")
    if inspect.isabstract(kind):
        raise InputError(f"observer {kind.__name__}: it has no `arrays`")
    try:
        kind()
    except TypeError as error:
        raise InputError(f"observer {kind.__name__}: 'all' takes it with its defaults, but {error}") from error
    OBSERVERS.add(kind.__name__, kind)
    return kind
