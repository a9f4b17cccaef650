"""Shapes in signatures are checked while tests run: those of calls that differ from the calls before them.

A function that states a shape, and a dataclass with a field that does, is wrapped when its module is imported. Whether
a call agrees with its signature depends on types, dtypes and shapes of what goes in and comes out alone. So jaxtyping
and beartype look at each combination of them once: at every call, they would take two thirds of a test's time. Of a
function that is called again and again a part of the calls is looked at, since even to see that one is like those
before took a quarter.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import itertools
import os
import re
import sys
from collections.abc import Callable, Hashable, Iterable
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import cache_from_source
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any
from unittest.mock import patch

import jaxtyping
import pytest

ROOT = Path(__file__).parent.parent
CHECKED = "__import__('tests.shapes').shapes.checked"
PLAIN = {int, float, bool, type(None), slice}
EVERY_ONE, ONE_OF = 200, 7  # calls of a function that are looked at: all of the first, later one of so many
BYTECODE = functools.partial(cache_from_source, optimization="shapes2")  # another name when `_Marks` changes
unchecked = pytest.mark.skipif(
    "SINKSCOPE_NO_SHAPE_CHECKS" not in os.environ,
    reason="torch.compile cannot trace shape checks: set SINKSCOPE_NO_SHAPE_CHECKS=1, as `make test-slow` does",
)
"""The mark of tests that compile."""


def install(package: str) -> None:
    """Check the modules of `package` that are imported from now on."""
    sys.meta_path.insert(0, _Finder(package))


def checked(what: Any) -> Any:
    """A function, or a dataclass by its fields, whose calls are compared with their signature."""
    if isinstance(what, type):
        if dataclasses.is_dataclass(what):
            what.__init__ = checked(what.__init__)
        return what
    stated = " ".join(re.findall(r"[\"'](.*?)[\"']", " ".join(map(str, what.__annotations__.values()))))
    assert not re.search(r"\b[2-9]|\d\d|[-+/]", stated), (
        f"{what.__qualname__}: `_kind` reads names of sizes, not {stated!r}"
    )
    seen: dict[Hashable, set[Hashable]] = {}
    same: dict[Hashable, set[Hashable]] = {}  # by their very sizes, which are read in a third of the time
    compared = functools.cache(functools.partial(_compared, what))

    calls = itertools.count()

    @functools.wraps(what)
    def call(*args: Any, **kwargs: Any) -> Any:
        if (number := next(calls)) >= EVERY_ONE and number % ONE_OF:
            return what(*args, **kwargs)
        exact = (*map(_exact, args), *map(_exact, kwargs.values()), *kwargs)
        if exact not in same:
            result = alike(what, args, kwargs)
            same[exact] = {_exact(result)}
            return result
        result = what(*args, **kwargs)
        if (returned := _exact(result)) not in same[exact]:
            alike(lambda *_, **__: result, args, kwargs)
            same[exact].add(returned)
        return result

    def alike(run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        sizes: dict[int, int] = {0: 0, 1: -1}
        given = (*(_kind(value, sizes) for value in (*args, *kwargs.values())), *kwargs)
        if given not in seen:
            result = compared()(run, args, kwargs)
            seen[given] = {_kind(result, sizes)}
            return result
        result = run(*args, **kwargs)
        returned = _kind(result, sizes)
        if returned not in seen[given]:
            compared()(lambda *_, **__: result, args, kwargs)
            seen[given].add(returned)
        return result

    return call


def _compared(function: Callable[..., Any]) -> Callable[[Callable[..., Any], Any, Any], Any]:
    """What runs another function as if it were this one; raises where arguments or result are not as signed."""
    import beartype

    pending: list[Callable[..., Any]] = []

    def run(*args: Any, **kwargs: Any) -> Any:
        return pending.pop()(*args, **kwargs)

    same = FunctionType(run.__code__, function.__globals__, function.__name__, None, run.__closure__)
    signed = jaxtyping.jaxtyped(functools.wraps(function)(same), typechecker=beartype.beartype)

    def compare(other: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        outer = len(pending)
        pending.append(other)
        try:
            return signed(*args, **kwargs)
        finally:
            del pending[outer:]

    return compare


def _kind(value: Any, sizes: dict[int, int]) -> Hashable:
    """All that a signature says of a value: its type, and dtype and shape or contents of what has them.

    A signature gives names to sizes, no numbers: a shape is which sizes are equal (`sizes`: their numbers so far; 0 and
    1, which broadcasts, stay).
    """
    if isinstance(value, tuple | list):
        return (type(value), *(_kind(part, sizes) for part in value))
    if isinstance(value, str):
        return value
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if dtype is None or not isinstance(shape, tuple):
        return type(value)
    return (type(value), dtype, *(sizes.setdefault(size, len(sizes)) for size in shape))


def _exact(value: Any) -> Hashable:
    """What `_kind` says of a value, with its sizes as they are."""
    kind = type(value)
    read = _readers.get(kind)
    if read is None:
        read = _readers[kind] = _reader(kind)
    return read(value)


_readers: dict[type, Callable[[Any], Hashable]] = {}  # by type: attributes of modules take long to look for in vain


def _reader(kind: type) -> Callable[[Any], Hashable]:
    if issubclass(kind, tuple | list):
        return lambda value: (kind, *map(_exact, value))
    if issubclass(kind, str):
        return lambda value: value
    if kind in PLAIN or not (hasattr(kind, "shape") and hasattr(kind, "dtype")):
        return lambda value: kind
    return lambda value: (kind, value.dtype, value.shape) if isinstance(value.shape, tuple) else kind


@functools.cache
def _named_shapes(module: str) -> frozenset[str]:
    """Names that a module of the package gives to shapes."""
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    return frozenset(_Marks(ast.parse(path.read_text("utf-8"))).names) if path.exists() else frozenset()


class _Marks(ast.NodeTransformer):
    """Decorates what states a shape: with a name that is imported from jaxtyping, or made of such names.

    They may be made in another module of the package and imported from there, by its own path.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.names: set[str] = set()
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module == "jaxtyping":
                self.names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("sinkscope."):
                self.names |= {alias.name for alias in node.names} & _named_shapes(node.module)
        for node in tree.body:
            if isinstance(node, ast.Assign) and self._state_one([node.value]):
                self.names |= {target.id for target in node.targets if isinstance(target, ast.Name)}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        every = (part.annotation for part in ast.walk(node.args) if isinstance(part, ast.arg))
        return self._marked(node, [*every, node.returns], len(node.decorator_list))

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        self.generic_visit(node)
        return self._marked(node, (part.annotation for part in node.body if isinstance(part, ast.AnnAssign)), 0)

    def _marked(self, node: Any, annotations: Iterable[ast.expr | None], place: int) -> Any:
        unchecked = any("no_type_check" in ast.unparse(each) for each in node.decorator_list)
        if not unchecked and self._state_one(annotations):
            mark = ast.parse(CHECKED, mode="eval").body
            for part in ast.walk(mark):
                ast.copy_location(part, node)
            node.decorator_list.insert(place, mark)
        return node

    def _state_one(self, annotations: Iterable[ast.expr | None]) -> bool:
        parts = (part for annotation in annotations if annotation is not None for part in ast.walk(annotation))
        return any(isinstance(part, ast.Name) and part.id in self.names for part in parts)


class _Loader(SourceFileLoader):
    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> Any:
        tree = ast.parse(data)
        return compile(_Marks(tree).visit(tree), path, "exec", dont_inherit=True, optimize=_optimize)

    def get_code(self, fullname: str) -> Any:
        with patch("importlib._bootstrap_external.cache_from_source", BYTECODE):  # apart from the bytecode of users
            return super().get_code(fullname)


class _Finder:
    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self.package and not name.startswith(f"{self.package}."):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec
