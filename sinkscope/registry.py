"""Registries: the package's own names, and those that other packages add.

A package registers with a decorator (`sinkscope.operation`, `.observer`, `.intervention`, `.policy`, `.scheme`,
`.question`, `.task`). So that users need not import it first, its `pyproject.toml` names the decorated object, or its
module, under the entry-point group of the same name (`sinkscope.operation` …).
"""

from __future__ import annotations

import importlib
import inspect
import operator
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar, cast

from sinkscope.errors import InputError

Group = Literal["operation", "observer", "intervention", "policy", "scheme", "question", "task"]
Value = TypeVar("Value")
Taker = TypeVar("Taker", bound=Callable[..., object])

_TAKES: dict[str, Callable[..., object]] = {}
_OPENED: set[str] = set()


class Registry(Mapping[str, Value]):
    """Values of a kind by name, the package's own first.

    Its own names are available at once. The entry points of installed packages are imported when another name is looked
    up, and when all names are listed.
    """

    def __init__(self, group: Group, own: Mapping[str, Value] | None = None, what: str | None = None) -> None:
        self.group, self.what = group, what or group
        self.own: dict[str, Value] = dict(own or {})
        self.added: dict[str, Value] = {}

    def add(self, name: str, value: Value) -> None:
        """Add what another package registers. Registering the same object again replaces it (a reloaded module).

        Raises `InputError` for a name that is taken.
        """
        if not name or not isinstance(name, str):
            raise InputError(f"{self.what} {value!r}: needs a name")
        if name in self.own:
            raise InputError(f"{self.what} '{name}' is one of sinkscope's own: choose another name")
        if name in self.added and _place(self.added[name]) != _place(value):
            raise InputError(
                f"{self.what} '{name}' is registered already, by {package_of(self.added[name])}: choose another name"
            )
        self.added[name] = value

    def __getitem__(self, name: str) -> Value:
        if name in self.own:
            return self.own[name]
        open_group(self.group)
        return self.added[name]

    def __iter__(self) -> Iterator[str]:
        yield from self.own
        open_group(self.group)
        yield from list(self.added)

    def __len__(self) -> int:
        open_group(self.group)
        return len(self.own) + len(self.added)


def taking(group: Group) -> Callable[[Taker], Taker]:
    """Marks the function that registers the object of an entry point of `group`; it may be called again with it."""

    def mark(take: Taker) -> Taker:
        _TAKES[group] = take
        return take

    return mark


def open_group(group: Group) -> None:
    """Import the entry points of installed packages for `group`, once in a process.

    A package that fails is left out with a `UserWarning` that names the error.
    """
    if group in _OPENED:
        return
    _OPENED.add(group)  # before the imports: a package that lists names while it is imported sees those so far
    for point in sorted(entry_points(group=f"sinkscope.{group}"), key=lambda point: (point.name, point.value)):
        try:
            loaded = point.load()
            if not isinstance(loaded, ModuleType) and group in _TAKES:
                _TAKES[group](loaded)
        except Exception as error:
            whose = f" of {point.dist.name} {point.dist.version}" if point.dist is not None else ""
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            warnings.warn(
                f"the {group} '{point.value}'{whose} is left out, since importing it failed: {reason}",
                UserWarning,
                stacklevel=2,
            )


def imported(name: str) -> Any:
    """The object `module:Name`; the module may be in the working directory.

    Raises `InputError` if the module cannot be imported, or has no such name.
    """
    module, _, path = name.partition(":")
    try:
        with _working_directory():
            return operator.attrgetter(path)(importlib.import_module(module))
    except AttributeError as error:
        raise InputError(f"'{name}': {error}") from error
    except Exception as error:  # importing a user's module may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"'{name}': module '{module}' cannot be imported ({reason})") from error


@contextmanager
def _working_directory() -> Iterator[None]:
    """While active, modules in the working directory can be imported, as with `python -m`."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)


def check_kind(kind: object, base: type, group: Group, meaning: str) -> None:
    """Raises `InputError` unless `kind` is a subclass of `base` that can be built without arguments.

    `meaning`: what its name means, for the message.
    """
    if not (isinstance(kind, type) and issubclass(kind, base)):
        room = base.__module__.split(".")[1]
        raise InputError(f"@sinkscope.{group} decorates a subclass of sinkscope.{room}.{base.__name__}, got {kind!r}")
    if inspect.isabstract(kind):
        lacking = ", ".join(f"`{name}`" for name in sorted(getattr(kind, "__abstractmethods__", ())))
        raise InputError(f"{group} {kind.__name__}: it has no {lacking}")
    try:
        kind()
    except TypeError as error:
        raise InputError(f"{group} {kind.__name__}: {meaning}, but {error}") from error


def renamed(old: str, new: str, names: Mapping[str, str] | None = None) -> Callable[[str], Any]:
    """The `__getattr__` of a renamed module: its names are those of `new`, with a `DeprecationWarning`.

    `names`: those that changed as well, old to new.
    """

    def get(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        now = (names or {}).get(name, name)
        value = getattr(importlib.import_module(new), now)
        warnings.warn(f"{old}.{name} is {new}.{now} now", DeprecationWarning, stacklevel=2)
        return value

    return get


def moved(module: str, names: Mapping[str, str], otherwise: Callable[[str], Any] | None = None) -> Callable[[str], Any]:
    """The `__getattr__` of a module some of whose names moved: old name to the full new one; a `DeprecationWarning`.

    `otherwise` finds the other names that the module makes when they are first used.
    """

    def get(name: str) -> Any:
        if name not in names and otherwise is not None:
            return otherwise(name)
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        place, _, new = names[name].rpartition(".")
        value = getattr(importlib.import_module(place), new)
        warnings.warn(f"{module}.{name} is {names[name]} now", DeprecationWarning, stacklevel=2)
        return value

    return get


def renamed_argument(old: str, new: str) -> Callable[[Taker], Taker]:
    """Read the keyword argument `old` of a function or class as `new`, with a `DeprecationWarning`."""

    def mark(called: Taker) -> Taker:
        target: Any = vars(called)["__init__"] if isinstance(called, type) else called

        @wraps(target)
        def read(*args: Any, **kwargs: Any) -> Any:
            if old in kwargs:
                warnings.warn(f"{old}= is now {new}=", DeprecationWarning, stacklevel=2)
                kwargs[new] = kwargs.pop(old)
            return target(*args, **kwargs)

        if isinstance(called, type):
            called.__init__ = read  # type: ignore[misc]
            return called
        return cast(Taker, read)

    return mark


def package_of(value: Any) -> str:
    """The top package of a class or function, or of a value's class: `sinkscope_toy`."""
    return str(_owner(value).__module__).partition(".")[0]


def missing(what: str, package: object) -> InputError:
    """The error for a name whose package is not installed, or does not register it."""
    if str(package) == "__main__":
        return InputError(f"{what} was registered by a script or notebook: register it here too before this is read")
    here = "is imported, but does not register it" if str(package) in sys.modules else "was not found"
    return InputError(f"{what} is registered by the package '{package}', which {here}: install or import it first")


def dashed(name: str) -> str:
    """`LongValues` and `long_values` as `long-values`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[0-9])(?=[A-Z][a-z])", "-", name).replace("_", "-").strip("-").lower()


def _owner(value: Any) -> Any:
    """What a thing was written as: a class, a function, or the class of a value; of a line of the catalog its maker."""
    value = getattr(value, "maker", value)
    return value if hasattr(value, "__qualname__") else type(value)


def _place(value: Any) -> tuple[str, str]:
    owner = _owner(value)
    return str(owner.__module__), str(owner.__qualname__)
