"""Which tests are fast: of long lists of alike cases a part, of which the rest is slow.

`@pytest.mark.in_part(4)` over a test: one in four of its cases is fast, and the others are slow; of several arguments
every value of each is fast, and the others are a matrix. Of what was slow already one in four stays so, and the others
are long.
A matrix is the rest of a list of combinations of which the fast tests have a part with every value of every argument:
what a value does wrong by itself shows there. It is for `make test-slow`, and CI goes without it, as without what is
marked `long`, which is slow as well.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import product
from typing import Any

import pytest

MATRIX = (pytest.mark.slow, pytest.mark.matrix)


def thinned(cases: Iterable[Any], keep: int) -> list[Any]:
    """One case of `keep` as it is, the others marked slow. Tuples are the values of several arguments: then every value
    of every argument is among the first, about equally often, for which more are kept where need be, and the others are
    a matrix."""
    rows = [case if isinstance(case, tuple) else (case,) for case in cases]
    width = len(rows[0])
    kept = set(range(0, len(rows), keep)) if width == 1 else _spread(rows, -(-len(rows) // keep))
    others = pytest.mark.slow if width == 1 else MATRIX
    return [pytest.param(*row, marks=() if number in kept else others) for number, row in enumerate(rows)]


def one_of_each(cases: Iterable[Any], kind: Callable[[Any], Hashable]) -> list[Any]:
    """The first case of each kind as it is, the others, which are like it, a matrix."""
    met: set[Hashable] = set()
    found = []
    for case in cases:
        found.append(pytest.param(case, marks=MATRIX if kind(case) in met else ()))
        met.add(kind(case))
    return found


def crossed(*values: Iterable[Any]) -> list[Any]:
    """All combinations; as many of them fast as the longest of the arguments has values."""
    arguments = [list(each) for each in values]
    cases = list(product(*arguments))
    return thinned(cases, len(cases) // max(map(len, arguments)))


def mark(items: Sequence[pytest.Item]) -> None:
    """Of tests `in_part` mark the other cases: of fast ones as slow, of slow ones as long. What is long is slow too."""
    in_part: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and item.get_closest_marker("in_part"):
            in_part[item.nodeid.partition("[")[0]].append(item)
    for cases in in_part.values():
        fast = [case for case in cases if not case.get_closest_marker("slow")]
        slow = [case for case in cases if case.get_closest_marker("slow")]
        for item in _others(slow):
            item.add_marker(pytest.mark.long)
        for item in _others(fast):
            for marker in MATRIX if len(_lists(item)) > 1 else (pytest.mark.slow,):
                item.add_marker(marker)
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.slow)


def _others(cases: Sequence[pytest.Function]) -> list[pytest.Function]:
    """The cases of one test that are not among its fast ones."""
    if not cases:
        return []
    (keep,) = cases[0].get_closest_marker("in_part").args  # type: ignore[union-attr]
    columns = [
        _numbered([tuple(id(case.callspec.params[name]) for name in names) for case in cases])
        for names in _lists(cases[0])
    ]
    alone = len(columns) <= 1
    wanted = -(-len(cases) // keep)
    kept = set(range(0, len(cases), keep)) if alone else _spread([*zip(*columns, strict=True)], wanted)
    return [case for number, case in enumerate(cases) if number not in kept]


def _lists(case: pytest.Function) -> list[tuple[str, ...]]:
    """The arguments of a test, those together that one list gives together."""
    given = [mark.args[0] for mark in case.iter_markers("parametrize")]
    together = [tuple(re.findall(r"\w+", names)) if isinstance(names, str) else tuple(names) for names in given]
    return together + [(name,) for name in case.callspec.params if not any(name in names for names in together)]


def _numbered(column: Sequence[Hashable]) -> list[int]:
    """Values by the order in which they come, the same in every process."""
    order = {value: number for number, value in enumerate(dict.fromkeys(column))}
    return [order[value] for value in column]


def _spread(rows: list[tuple[Any, ...]], wanted: int) -> set[int]:
    """Numbers of rows that meet the values of each column equally often, those not met yet first."""
    columns = [[repr(row[place]) for row in rows] for place in range(len(rows[0]))]
    met: list[Counter[str]] = [Counter(dict.fromkeys(column, 0)) for column in columns]
    kept: set[int] = set()

    def often(number: int) -> tuple[int, float]:
        counts = [counter[column[number]] for counter, column in zip(met, columns, strict=True)]
        shares = (count * len(counter) for count, counter in zip(counts, met, strict=True))
        return -counts.count(0), sum(shares)

    while len(kept) < wanted or not all(map(all, (counter.values() for counter in met))):
        number = min((number for number in range(len(rows)) if number not in kept), key=often)
        kept.add(number)
        for counter, column in zip(met, columns, strict=True):
            counter[column[number]] += 1
    return kept
