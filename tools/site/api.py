"""A page of the site per room: every public name, explained in one place.

`automodule` would leave out constants and names that are imported late, and explain twice what two rooms export.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import sinkscope
from tools.site.text import escaped, restructured

TOP = "sinkscope"
SHORT = 60  # characters of a constant that is shown as it is
MOST = 12  # names of a catalog that are listed


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


def exported(module: ModuleType) -> list[str]:
    """The names that a room's face exports: its `__all__`, or else what its `__init__.py` imports."""
    if hasattr(module, "__all__"):
        return sorted(name for name in module.__all__ if not name.startswith("_"))
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module != "__future__"]
    names = {name.asname or name.name for node in imports for name in node.names}
    return sorted(name for name in names if not name.startswith("_"))


def everything() -> list[Public]:
    """All names, those of `sinkscope` first; one that several export stands there for each."""
    top = [Public(TOP, name, getattr(sinkscope, name)) for name in sorted(sinkscope._HOME)]
    rooms = [importlib.import_module(f"{TOP}.{room}") for room in sinkscope._ROOMS]
    return top + [Public(room.__name__, name, getattr(room, name)) for room in rooms for name in exported(room)]


def explained() -> dict[str, list[tuple[Public, Public]]]:
    """By room: its names, each with the one that is explained.

    A thing is explained once: where `import sinkscope` offers it, else in the room that defines it, else in the first
    that exports it.
    """

    def rank(public: Public) -> tuple[bool, bool]:
        return public.home != TOP, not str(getattr(public.value, "__module__", "")).startswith(f"{public.home}.")

    place: dict[int, Public] = {}
    for each in sorted(everything(), key=rank):
        place.setdefault(id(each.value), each)
    pages: dict[str, list[tuple[Public, Public]]] = {}
    for each in everything():
        pages.setdefault(each.home, []).append((each, place[id(each.value)]))
    return pages


def api_pages() -> dict[str, str]:
    """The pages, by file name."""
    return {f"{home.rpartition('.')[2]}.rst": _room(home, names) for home, names in explained().items()}


def _room(home: str, names: list[tuple[Public, Public]]) -> str:
    about = restructured(inspect.cleandoc(importlib.import_module(home).__doc__ or "").splitlines())
    parts = [f"{home}\n{'=' * len(home)}", "\n".join(about), f".. py:module:: {home}"]
    if links := ", ".join(f":py:obj:`{each.name} <{other.full}>`" for each, other in names if other != each):
        parts.append(f"Exported here too, and explained where they are at home: {links}.")
    return "\n\n".join([*parts, *(_entry(each) for each, other in names if other == each)]) + "\n"


def _entry(public: Public) -> str:
    if inspect.isroutine(public.value):
        return f".. autofunction:: {public.full}"
    if not inspect.isclass(public.value):
        return _data(public)
    kind = "exception" if issubclass(public.value, BaseException) else "class"
    bases = "\n   :show-inheritance:" if public.value.__bases__ != (object,) else ""
    return f".. auto{kind}:: {public.full}\n   :members:{bases}"


def _data(public: Public) -> str:
    value, note = public.value, _note(public)
    kind = type(value).__name__
    lines = [f".. py:data:: {public.full}", "   :module:"]  # the name is whole: the page's module is not put before it
    shown = repr(value)
    if isinstance(value, str | int | float | tuple) and len(shown) <= SHORT and "\\" not in shown:
        lines.append(f"   :value: {shown}")
    body = restructured(note.splitlines()) if note else []
    if isinstance(value, dict):
        names = ", ".join(f"``{name}``" for name in list(value)[:MOST] if isinstance(name, str))
        more = f" and {len(value) - MOST} more" if len(value) > MOST else ""
        body += ["", f"A dictionary of {len(value)}: {names}{more}."] if names else []
    elif not body and len(shown) > SHORT:
        body += [escaped(f"A `{kind}`: `{shown}`" if "`" not in shown and " at 0x" not in shown else f"A `{kind}`.")]
    return "\n".join([*lines, "", *(f"   {line}".rstrip() for line in body)])


def _note(public: Public) -> str:
    """The docstring of a constant, below its assignment in a file of its room; empty where there is none."""
    from sphinx.pycode import ModuleAnalyzer

    folder = Path(str(importlib.import_module(public.home).__file__)).parent
    for path in sorted(folder.rglob("*.py")):
        if lines := ModuleAnalyzer.for_file(path, path.stem).find_attr_docs().get(("", public.name)):
            return inspect.cleandoc("\n".join(lines))
    return ""
