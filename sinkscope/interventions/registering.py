"""Interventions of other packages."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, overload

from sinkscope.errors import InputError
from sinkscope.interventions.intervention import Intervention
from sinkscope.interventions.named import NAMED, Finder, Found, Subject
from sinkscope.registry import check_kind, dashed, taking

Thing = TypeVar("Thing", bound="Finder | type[Intervention]")


@overload
def intervention(thing: Thing) -> Thing: ...
@overload
def intervention(thing: str) -> Callable[[Thing], Thing]: ...


@taking("intervention")
def intervention(thing: Any) -> Any:
    """Register an intervention: `@sinkscope.intervention`, or `@sinkscope.intervention("its-name")`.

    It decorates a function from a `Subject` (the model, its inputs, where the sink is) to `Found` (the intervention,
    and what it acts on in words), or a class of interventions, taken with its defaults. Then `sinkscope intervene
    --what its-name` and `interventions.named` know it. Without a name, `scale_first` and `ScaleFirst` are called
    `scale-first`. Raises `InputError` for anything else and for a name that is taken; what the function returns is
    checked when it is used.
    """
    if isinstance(thing, str):
        return lambda decorated: _registered(decorated, thing)
    return _registered(thing)


def _registered(thing: Any, name: str | None = None) -> Any:
    if isinstance(thing, type) and issubclass(thing, Intervention):
        instead = "its name stands for it with its defaults (or decorate a function from a Subject to Found)"
        check_kind(thing, Intervention, "intervention", instead)
    elif isinstance(thing, type) or not callable(thing):
        raise InputError(
            f"@sinkscope.intervention decorates a function from a Subject to Found, or a class of interventions; got "
            f"{thing!r}"
        )
    if name is None and any(getattr(known, "maker", None) is thing for known in NAMED.added.values()):
        return thing  # under the name that it has
    NAMED.add(name or dashed(thing.__name__), _Finder(thing))
    return thing


class _Finder:
    """A decorated function or class as a finder with a checked result."""

    def __init__(self, maker: Any) -> None:
        self.maker = maker

    def __call__(self, subject: Subject) -> Found:
        if isinstance(self.maker, type):
            lines = (inspect.getdoc(self.maker) or "").splitlines()
            return Found(self.maker(), lines[0] if lines else self.maker.__name__)
        result = self.maker(subject)
        if not isinstance(result, Found):
            raise InputError(f"intervention '{self.maker.__name__}' returned {result!r}, expected a Found")
        return result
