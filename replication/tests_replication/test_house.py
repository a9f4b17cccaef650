"""The study stands on public names of sinkscope alone, and can be listed without torch."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import sinkscope_replication
from sinkscope_replication.questions import NAMES

PACKAGE = Path(sinkscope_replication.__file__).parent

ROOMS = {"metrics"}  # a room inside a room, with a face of its own


def inside(source: str) -> Iterator[str]:
    """Imports of what no face of sinkscope exports: in its `__all__`, or else as a package's `name as name`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.startswith("sinkscope."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "sinkscope":
            face = set(exported(importlib.import_module(str(node.module))))
            yield from (f"{node.module}.{each.name}" for each in node.names if each.name not in face | ROOMS)


def exported(module: ModuleType) -> Iterable[str]:
    if hasattr(module, "__all__"):
        return module.__all__
    file = Path(str(module.__file__))
    if file.name != "__init__.py":
        return ()
    imports = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)]
    return {each.name for node in imports for each in node.names if each.asname == each.name}


def test_it_imports_what_faces_export():
    found = {str(path.relative_to(PACKAGE)): list(inside(path.read_text())) for path in sorted(PACKAGE.rglob("*.py"))}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("from sinkscope.experiments import Question, run", 0),
        ("from sinkscope import measurement", 0),
        ("from sinkscope.experiments.readings import rates", 0),
        ("from sinkscope.experiments.running import run", 1),
        ("from sinkscope.experiments import RunStore, findings", 1),
        ("import sinkscope.experiments.findings", 1),
        ("def later():\n    from sinkscope.measurement.observing import DEFAULT", 1),
    ],
)
def test_going_behind_a_face_is_noticed(line, count):
    assert len(list(inside(line))) == count


def test_questions_are_known_without_torch_and_matplotlib():
    script = (
        "import sys; from sinkscope.experiments import QUESTIONS; "
        "print(len(QUESTIONS), *({'torch', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(NAMES))], done.stderr


def test_sinkscope_does_not_know_the_study():
    import sinkscope

    sources = Path(sinkscope.__file__).parent.rglob("*.py")
    assert [str(path) for path in sources if "sinkscope_replication" in path.read_text()] == []
