"""The table of the README is what the records say, and stays within what people read."""

from __future__ import annotations

import pytest

from sinkscope_replication import table
from sinkscope_replication.paper import ROWS, Row


def test_the_readme_has_the_table_of_the_records():
    text = table.README.read_text(encoding="utf-8")
    assert table.filled(text) == text


def test_the_check_fails_where_a_number_is_another(tmp_path, monkeypatch):
    text = table.README.read_text(encoding="utf-8")
    monkeypatch.setattr(table, "README", tmp_path / "README.md")
    table.README.write_text(text.replace(": 13 of 13 (75", ": 12 of 13 (75", 1), encoding="utf-8")
    assert table.main(["--check"]) == 1
    assert table.main([]) == 0
    assert table.README.read_text(encoding="utf-8") == text
    table.README.write_text("no marks")
    with pytest.raises(ValueError, match="needs a line"):
        table.main([])


def test_people_can_read_it():
    assert len(ROWS) <= 60
    assert len(table.README.read_text(encoding="utf-8").split()) <= 4000
    claims = [row.claim for row in ROWS if row.claim]
    assert len(claims) == len(set(claims))
    assert all(bool(row.claim) != bool(row.beyond) for row in ROWS)


def test_a_row_of_no_claim_is_named():
    with pytest.raises(ValueError, match="experiment 'inputs' has no claim 'nothing'"):
        table.cells(Row("says", "T1", "1", "inputs/nothing"))


def test_an_open_row_names_hours_and_one_that_was_not_seen_what_differs():
    by = {row.says: table.cells(row) for row in ROWS}
    assert by["A learned sink token takes it"][-1].startswith("open: 3 of 7 runs, ")
    assert by["A learned sink token takes it"][-1].endswith(" h")
    assert by["Sigmoid costs no loss"][-1].startswith("**not seen**: sigmoid learns more slowly")
