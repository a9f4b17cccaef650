"""Every test asserts something: itself, or in what it calls, in the fixtures it takes, in the tables it reads."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


class Source:
    """A file of tests: what each name at its top stands for, and where the names come from that it imports."""

    def __init__(self, text: str) -> None:
        self.tree = ast.parse(text)

    @cached_property
    def defined(self) -> dict[str, list[ast.AST]]:
        """A table that a decorator fills, as in `@check`, stands for all that is decorated so."""
        found: dict[str, list[ast.AST]] = {}
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    for name in _names(target):
                        found.setdefault(name, []).append(node)
        for node in self.tree.body:
            for mark in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
                if isinstance(mark, ast.Name) and mark.id in found:
                    filled = [name for part in found[mark.id] for name in _names(part) if name in found]
                    for name in set(filled) - {mark.id}:
                        found[name].append(node)
        return found

    @cached_property
    def origins(self) -> dict[str, tuple[str, str]]:
        """Module and name there of what is imported from elsewhere, relative imports by the last part of their path."""
        nodes = [node for node in ast.walk(self.tree) if isinstance(node, ast.ImportFrom)]
        return {a.asname or a.name: (node.module or "", a.name) for node in nodes for a in node.names}

    @property
    def tests(self) -> Iterator[ast.FunctionDef]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield node


def _names(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.arg):  # a fixture
            yield part.arg


def _asserts(node: ast.AST) -> bool:
    for part in ast.walk(node):
        if isinstance(part, ast.Assert):
            return True
        if isinstance(part, ast.Call):
            name = ast.unparse(part.func).rpartition(".")[2]
            if name in ("raises", "warns") or name.startswith("assert_"):
                return True
    return False


def without_assertion(sources: Mapping[str, Source]) -> list[str]:
    """Tests, as module:name, of modules by their full names, from which no assertion is reached."""

    def found_in(module: str) -> Source | None:
        ends = (name for name in sources if name == module or name.endswith(f".{module}"))
        return sources[name] if (name := next(ends, None)) is not None else None

    def reaches(source: Source, node: ast.AST, met: set[int]) -> bool:
        if id(node) in met:
            return False
        met.add(id(node))
        return _asserts(node) or any(
            reaches(there, other, met) for name in _names(node) for there, other in meanings(source, name)
        )

    def meanings(source: Source, name: str) -> Iterator[tuple[Source, ast.AST]]:
        module, original = source.origins.get(name, ("", ""))
        other = found_in(module) if module else None
        yield from ((source, node) for node in source.defined.get(name, ()))
        yield from ((other, node) for node in other.defined.get(original, ())) if other else ()

    return [
        f"{module}:{test.name}"
        for module, source in sources.items()
        for test in source.tests
        if not reaches(source, test, set())
    ]


@pytest.mark.slow
def test_every_test_asserts_something() -> None:
    paths = sorted((ROOT / "tests").rglob("*.py"))
    sources = {".".join(path.relative_to(ROOT).with_suffix("").parts): Source(path.read_text()) for path in paths}
    assert sum(len(list(source.tests)) for source in sources.values()) > 1000
    assert without_assertion(sources) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def test_a():\n    run()", ["m:test_a"]),
        ("def helper():\n    run()\n\ndef test_a():\n    helper()", ["m:test_a"]),
        ("def test_a():\n    assert run()", []),
        ("def test_a():\n    with pytest.raises(E):\n        run()", []),
        ("def helper():\n    torch.testing.assert_close(a, b)\n\ndef test_a():\n    helper()", []),
        ("@pytest.fixture\ndef sound():\n    assert run()\n\ndef test_a(sound):\n    run()", []),
        ("T = {}\n\ndef check(f):\n    T[0] = f\n\n@check\ndef c():\n    assert 1\n\ndef test_a():\n    T[0]()", []),
        (
            "T = {}\n\ndef check(f):\n    T[0] = f\n\n@check\ndef c():\n    run()\n\ndef test_a():\n    T[0]()",
            ["m:test_a"],
        ),
        ("from helpers import sound\n\ndef test_a():\n    sound()", []),
        ("from helpers import silent\n\ndef test_a():\n    silent()", ["m:test_a"]),
    ],
)
def test_a_test_without_one_is_noticed(text: str, found: list[str]) -> None:
    helpers = Source("def sound():\n    assert run()\n\ndef silent():\n    run()")
    assert without_assertion({"m": Source(text), "tests.helpers": helpers}) == found
