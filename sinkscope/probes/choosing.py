"""Which observers are meant: by value, by name, or all of them."""

from __future__ import annotations

from collections.abc import Sequence

from sinkscope.errors import InputError, unknown
from sinkscope.probes.observers.observer import OBSERVERS, Observer, every
from sinkscope.probes.observing import DEFAULT
from sinkscope.registry import imported

SETS = {"all": every, "few": lambda: DEFAULT}


def chosen(observers: Sequence[Observer | str] | str | None) -> tuple[Observer, ...]:
    """The observers of `measure`: those of a list, by name or as values; None is "few", what it takes by default.

    A name is "all" or "few", that of a class in `OBSERVERS`, or `module:Name` of one to be imported; it stands for one
    with its defaults. A value takes the place of one of its class that a name stands for. Raises `InputError` for
    anything else.
    """
    if observers is None:
        return DEFAULT
    given = [observers] if isinstance(observers, str) else list(observers)
    if not given:
        raise InputError(f"observers = {observers!r}: expected a list of observers, 'all', or None")
    by_name: dict[type, Observer] = {}
    values: list[Observer] = []
    for one in given:
        if isinstance(one, str):
            by_name |= {type(observer): observer for observer in _called(one)}
        else:
            values.append(one)
    kinds = {type(one) for one in values}
    if "all" in given:  # their order, whatever stands before
        by_name = {type(one): one for one in every()} | by_name
    return (*(observer for kind, observer in by_name.items() if kind not in kinds), *values)


def named_in(observers: Sequence[Observer | str] | str | None) -> frozenset[str]:
    """The classes of observers that are asked for one by one, and not because they are among all."""
    given = [observers] if isinstance(observers, str) else observers or ()
    return frozenset(
        one.rpartition(":")[2] if isinstance(one, str) else type(one).__name__ for one in given if one not in SETS
    )


def _called(name: str) -> tuple[Observer, ...]:
    if name in SETS:
        return SETS[name]()
    if ":" not in name:
        if name not in OBSERVERS:
            raise unknown("observer", name, [*SETS, *OBSERVERS])
        return (OBSERVERS[name](),)
    kind = imported(name)
    if isinstance(kind, Observer):
        return (kind,)
    if not (isinstance(kind, type) and issubclass(kind, Observer)):
        raise InputError(f"observer '{name}': {kind!r} is no class of observers")
    try:
        return (kind(),)
    except TypeError as error:
        raise InputError(f"observer '{name}' is taken with its defaults, but {error}") from error
