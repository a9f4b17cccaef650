"""What CI leaves out of the slow tests."""

from __future__ import annotations

import pytest

from tests.plugin import chosen

MANY = [f"tests/test_it.py::test_many[{case}]" for case in range(800)]
ALONE = [f"tests/test_it.py::test_{number}" for number in range(600)]


@pytest.mark.parametrize("every", [8, 16])
def test_about_one_case_in_n_is_run_and_every_sixth_test_without_cases(every: int) -> None:
    found = chosen(every, [*MANY, *ALONE])
    assert len(found & set(MANY)) == pytest.approx(800 / every, rel=0.25)
    assert len(found & set(ALONE)) == pytest.approx(600 / 6, rel=0.25)
    assert found == chosen(every, MANY) | chosen(every, ALONE)


def test_by_default_all_are_run() -> None:
    assert chosen(1, [*MANY, *ALONE]) == {*MANY, *ALONE}


@pytest.mark.parametrize("count", range(1, 12))
def test_no_test_with_cases_is_left_out_nor_a_whole_file(count: int) -> None:
    for test in ("test_a", "test_b", "test_c"):
        assert chosen(8, [f"tests/test_it.py::{test}[{case}]" for case in range(count)])
        assert chosen(8, [f"tests/{test}.py::test_{case}" for case in range(count)])


def test_what_is_added_moves_no_other() -> None:
    before = chosen(8, [*MANY[:64], *ALONE[:64]])
    assert chosen(8, [*MANY[:65], *ALONE[:65]]) - {MANY[64], ALONE[64]} == before
