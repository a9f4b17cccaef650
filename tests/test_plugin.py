"""What CI leaves out of the slow tests."""

from __future__ import annotations

import pytest

from tests.plugin import one_in


def cases(test: str, count: int) -> list[str]:
    return [f"tests/test_it.py::{test}[{case}]" for case in range(count)]


@pytest.mark.parametrize("every", [1, 4, 8])
def test_about_one_case_in_n_is_run(every: int) -> None:
    some = cases("test_many", 800)
    assert len(one_in(every, some)) == pytest.approx(800 / every, rel=0.25)


@pytest.mark.parametrize("count", range(1, 12))
def test_no_test_is_left_out(count: int) -> None:
    for test in ("test_a", "test_b", "test_c"):
        assert one_in(8, cases(test, count))


def test_a_case_that_is_added_moves_no_other() -> None:
    some = cases("test_many", 64)
    assert [case for case in one_in(8, cases("test_many", 65)) if case in some] == one_in(8, some)
