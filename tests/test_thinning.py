"""Thinned lists still meet every value."""

from __future__ import annotations

from itertools import product

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
