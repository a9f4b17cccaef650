"""Thinned lists still meet every value."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from tests.thinning import crossed, one_of_each, thinned


def fast(marked: list) -> list[tuple]:
    return [case.values for case in marked if not case.marks]


def test_one_list_is_thinned_evenly() -> None:
    marked = thinned("abcdefg", 3)
    assert fast(marked) == [("a",), ("d",), ("g",)]
    assert {mark.name for case in marked for mark in case.marks} == {"slow"}, "nothing else stands for b"


@pytest.mark.parametrize("sizes", [(3, 3), (7, 3), (2, 8, 4), (5, 1)])
def test_every_value_of_every_argument_stays_about_equally_often(sizes: tuple[int, ...]) -> None:
    for keep in (2, 3, 4):
        cases = list(product(*map(range, sizes)))
        marked = thinned(cases, keep)
        assert [case.values for case in marked] == cases
        found = fast(marked)
        assert len(found) == max(-(-len(cases) // keep), max(sizes))
        for place, size in enumerate(sizes):
            counts = [sum(case[place] == value for case in found) for value in range(size)]
            assert max(counts) - min(counts) <= 1


def test_crossed_meets_the_longest_once() -> None:
    assert sorted(fast(crossed("abcd", (1, 2)))) == [("a", 1), ("b", 2), ("c", 1), ("d", 2)]
    assert len(crossed("abcd", (1, 2))) == 8
    marks = [{mark.name for mark in case.marks} for case in crossed("abcd", (1, 2))]
    assert [names for names in marks if names] == [{"slow", "matrix"}] * 4, "its values are met by fast tests"


def test_the_first_of_each_kind_stays() -> None:
    marked = one_of_each([1, 3, 2, 5, 4, 6], lambda number: number % 2)
    assert [case.values for case in marked] == [(1,), (3,), (2,), (5,), (4,), (6,)]
    assert fast(marked) == [(1,), (2,)]
    assert [len(case.marks) for case in marked] == [0, 2, 0, 2, 2, 2]


CASES = """
import pytest

@pytest.mark.in_part(3)
@pytest.mark.parametrize("x", range(7))
def test_one(x): ...

@pytest.mark.in_part(4)
@pytest.mark.parametrize("x", "abcd")
@pytest.mark.parametrize("y", range(4))
def test_two(x, y): ...

@pytest.mark.in_part(2)
@pytest.mark.parametrize(("x", "y"), [(1, 2), (1, 4), (5, 6), pytest.param(7, 8, marks=pytest.mark.slow)])
def test_together(x, y): ...

@pytest.mark.in_part(9)
def test_without_cases(): ...

@pytest.mark.long
def test_long(): ...

@pytest.mark.slow
@pytest.mark.in_part(2)
@pytest.mark.parametrize("x", range(4))
def test_slow(x): ...
"""


@pytest.mark.slow
def test_cases_that_are_fast_in_part(tmp_path: Path) -> None:
    root = Path(__file__).parent.parent
    (tmp_path / "test_it.py").write_text(CASES)
    (tmp_path / "conftest.py").write_text(
        f"import sys; sys.path.insert(0, {str(root)!r})\n"
        "from tests.thinning import mark\n"
        "def pytest_collection_modifyitems(items): mark(items)\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow\n    long\n    matrix\n    in_part(n)\n")

    def collected(expression: str) -> list[str]:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", expression, "-p", "no:cacheprovider"]
        lines = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.splitlines()
        return [line.partition("::test_")[2] for line in lines if "::" in line]

    fast, slow = collected("not slow"), collected("slow")
    assert [case for case in fast if case.startswith("one")] == ["one[0]", "one[3]", "one[6]"]
    two = [case[len("two[") : -1].split("-") for case in fast if case.startswith("two")]
    assert len(two) == 4
    assert [sorted(column) for column in zip(*two, strict=True)] == [list("0123"), list("abcd")], "each value once"
    assert [case for case in fast if case.startswith("together")] == ["together[1-2]", "together[5-6]"]
    assert "without_cases" in fast
    assert "long" in slow
    assert sorted(fast + slow) == sorted(collected("slow or not slow")), "nothing is lost"
    assert len(fast + slow) == 7 + 16 + 4 + 1 + 1 + 4
    assert collected("long") == ["long", "slow[1]", "slow[3]"], "one of two stays slow"
    matrix = collected("matrix")
    assert matrix == [case for case in collected("slow") if case.startswith("two")], (
        "each value of two is met by others"
    )
    assert len(matrix) == 12
