"""Long lists of alike cases: a part of them in the fast tests, all in the slow ones and the fast ones together.

A matrix is the rest of a list of combinations of which the fast tests have a part with every value of every argument:
what a value does wrong by itself shows there. It is for `make test-slow`, and CI goes without it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
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
