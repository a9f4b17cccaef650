"""The tool that breaks the code: its mutants apply to today's code, and it tells survivors from the noticed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tools import mutants
from tools.mutants import MUTANTS, outcomes, stale
from tools.mutants_known import Mutant

ROOMS = ("attention", "hooks", "probes", "interventions", "caches", "training", "claims.py", "experiments")


def test_there_are_mutants_of_every_room_and_each_has_a_name_of_its_own() -> None:
    assert len(MUTANTS) >= 40
    assert len({(mutant.file, mutant.name) for mutant in MUTANTS}) == len(MUTANTS)
    for room in ROOMS:
        assert any(mutant.file.startswith(f"sinkscope/{room}") for mutant in MUTANTS), room


def test_every_mutant_changes_code_that_is_there() -> None:
    assert [mutant.name for mutant in stale(MUTANTS)] == []
    assert all(mutant.old != mutant.new for mutant in MUTANTS)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of one function and one test, which looks at one of its two lines."""
    for name, text in {
        "sinkscope/adding.py": "def add(a, b):\n    b = b + 0\n    return a + b\n",
        "tests/test_adding.py": "from sinkscope.adding import add\n\ndef test_add():\n    assert add(2, 3) == 5\n",
        "pyproject.toml": '[tool.pytest.ini_options]\nmarkers = ["slow: none"]\n',
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def mutant(old: str, new: str) -> Mutant:
    return Mutant("planted", "sinkscope/adding.py", old, new, ("tests/test_adding.py",))


@pytest.mark.long  # four runs of pytest
def test_survivors_are_told_from_the_noticed(project: Path) -> None:
    planted = [mutant("a + b", "a - b"), mutant("b + 0", "b * 1"), mutant("return a", "returns a")]
    found = list(outcomes(planted, 2, project))
    assert [outcome.survived for outcome in found] == [False, True, False]
    assert "a + b" in (project / "sinkscope/adding.py").read_text(), "the project itself is not changed"


def test_fast_tests_run_first_each_kind_in_its_order() -> None:
    slow = {"a": None, "B": object(), "c": None, "D": object()}
    items = [SimpleNamespace(name=name, get_closest_marker={"slow": mark}.get) for name, mark in slow.items()]
    mutants.FastFirst.pytest_collection_modifyitems(items)
    assert [item.name for item in items] == ["a", "c", "B", "D"]


def test_a_mutant_whose_line_is_gone_is_an_error(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = mutant("a * b", "a + b")
    assert stale([gone, mutant("a + b", "a - b")], project) == [gone]
    monkeypatch.setattr(mutants, "MUTANTS", [Mutant("planted", "sinkscope/claims.py", "not there", "", ())])
    assert mutants.main([]) == 2
    assert "stale: planted" in capsys.readouterr().out
    assert mutants.main(["--only", "no such room", "nor this"]) == 2
    assert "no mutant has 'no such room', 'nor this' in its name or path" in capsys.readouterr().out
    assert mutants.main(["--only", "no such room", "planted"]) == 2
    assert "stale: planted" in capsys.readouterr().out
