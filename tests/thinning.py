"""Long lists of alike cases: a part of them in the fast tests, all in the slow ones and the fast ones together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def thinned(cases: Iterable[Any], keep: int) -> list[Any]:
    """Every `keep`-th case as it is, the others marked slow. Tuples are the values of several arguments."""
    marked = []
    for number, case in enumerate(cases):
        values = case if isinstance(case, tuple) else (case,)
        marked.append(pytest.param(*values, marks=() if number % keep == 0 else pytest.mark.slow))
    return marked
