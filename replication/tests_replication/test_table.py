"""The table of the README stays within what people read, and each row within its claim."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sinkscope_replication import table
from sinkscope_replication.paper import ROWS, Row
from sinkscope_replication.questions import QUESTIONS


def test_people_can_read_it():
    assert len(ROWS) <= 60
    assert len((Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8").split()) <= 4000
    claims = [row.claim for row in ROWS if row.claim]
    assert len(claims) == len(set(claims))
    assert all(bool(row.claim) != bool(row.beyond) for row in ROWS)


def test_a_row_of_no_claim_is_named():
    with pytest.raises(ValueError, match="experiment 'inputs' has no claim 'nothing'"):
        table.cells(Row("says", "T1", "1", "inputs/nothing"))


def test_a_row_whose_models_share_a_start_is_open():
    """Tunings of one model are not independent, however many there are."""
    (tuned,) = [table.cells(row) for row in ROWS if row.claim and QUESTIONS[row.claim.partition("/")[0]].one_model]
    assert tuned[-3:-1] == ("12.1 and 12 %: 7 of 7", "1")
    assert tuned[-1].startswith("open: all tune one `nano`")


def test_open_rows_say_what_would_decide_them_or_that_nothing_does():
    by = {row.says: table.cells(row)[-1] for row in ROWS if row.claim}
    told = re.compile(r"\d h\b|cannot decide|^open: all")
    assert [grade for grade in by.values() if grade.startswith("open") and not told.search(grade)] == []
    assert by["... with relative positions"] == "open: 3 models cannot decide; 7 would"
    assert by["A moderate weight decay strengthens it"].endswith("losses differ by 0.23 nats")


def test_a_margin_that_is_not_the_sink_s_is_in_the_row():
    by = {row.says: table.cells(row)[3] for row in ROWS if row.claim}
    assert by["It follows a token fixed at position 2"].endswith("at 1 %")
    assert " % of mass: 5 times" in by["It weakens as texts grow (32 to 128 tokens)"]


def test_an_open_row_names_hours_and_one_that_was_not_seen_what_differs():
    by = {row.says: table.cells(row) for row in ROWS}
    assert by["The batch size matters little"][-1].startswith("open: 18 of 30 missing, ")
    assert by["The batch size matters little"][-1].endswith(" h")
    assert by["Sigmoid costs no loss"][-1].startswith("**not seen**: sigmoid learns more slowly")
