"""Every public name of the package, with the one place where the site explains it."""

from __future__ import annotations

import ast
import importlib
import inspect
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import sinkscope

TOP = "sinkscope"


@dataclass(frozen=True)
class Public:
    """A name that `home` (`sinkscope`, or a room of it) exports. `value` is what it stands for."""

    home: str
    name: str
    value: object

    @property
    def full(self) -> str:
        """`sinkscope.measurement.observe`."""
        return f"{self.home}.{self.name}"

    @property
    def kind(self) -> str:
        """`class`, `exception`, `function`, or `data` for everything else: catalogs, constants, types."""
        if inspect.isclass(self.value):
            return "exception" if issubclass(self.value, BaseException) else "class"
        return "function" if inspect.isroutine(self.value) else "data"


def exported(module: ModuleType) -> list[str]:
    """The names that a room's face exports: its `__all__`, or else what its `__init__.py` imports."""
    if hasattr(module, "__all__"):
        return sorted(name for name in module.__all__ if not name.startswith("_"))
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module != "__future__"]
    return sorted({name.asname or name.name for node in imports for name in node.names})


def everything() -> list[Public]:
    """All names, those of `sinkscope` first; one that several export stands there for each."""
    top = [Public(TOP, name, getattr(sinkscope, name)) for name in sorted(sinkscope._HOME)]
    rooms = [importlib.import_module(f"{TOP}.{room}") for room in sinkscope._ROOMS]
    return top + [Public(room.__name__, name, getattr(room, name)) for room in rooms for name in exported(room)]


def explained() -> dict[str, tuple[list[Public], list[tuple[Public, Public]]]]:
    """By room: the names that its page explains, and those that are explained elsewhere, each with its other place.

    A thing is explained once: where `import sinkscope` offers it, else in the room that defines it, else in the first
    that exports it.
    """
    names = everything()
    place = {id(each.value): each for each in reversed(names)}
    for each in names:
        if each.home != TOP and str(getattr(each.value, "__module__", "")).startswith(f"{each.home}."):
            place[id(each.value)] = each
    for each in names:
        if each.home == TOP:
            place[id(each.value)] = each
    pages: dict[str, tuple[list[Public], list[tuple[Public, Public]]]] = {}
    for each in names:
        here, elsewhere = pages.setdefault(each.home, ([], []))
        other = place[id(each.value)]
        if other == each:
            here.append(each)
        else:
            elsewhere.append((each, other))
    return pages


def note_of(public: Public) -> str:
    """The docstring of a constant, below its assignment in a file of its room; empty where there is none."""
    from sphinx.pycode import ModuleAnalyzer

    folder = Path(str(importlib.import_module(public.home).__file__)).parent
    for path in sorted(folder.rglob("*.py")):
        if lines := ModuleAnalyzer.for_file(path, path.stem).find_attr_docs().get(("", public.name)):
            return inspect.cleandoc("\n".join(lines))
    return ""
