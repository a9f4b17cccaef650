"""The page of the theory checks: figures of the curves it was given, every verdict in a table, text as text."""

from __future__ import annotations

from sinkscope.report.page import render
from sinkscope.statistics.claims import CaseValue, Claim, EachWithin
from sinkscope_replication.theory import Curve
from sinkscope_replication.theory.page import sinks_figure, spread_figure, theory_page

EVIL = "<script>alert(1)</script>"
SINKS = [Curve("none", (4, 8), (0.5, 0.3), (0.52, 0.34)), Curve(EVIL, (4, 8), (0.9, 0.8), (0.9, 0.8))]
SPREADS = [Curve("no sink", (0, 1, 2), (1.0, 0.5, 0.2)), Curve("sink logit 8", (0, 1, 2), (1.0, 0.9, 0.8))]


def page(value: float = 0.0):
    claim = Claim(f"claim {EVIL}", "zero is zero", "X", EachWithin(0))
    return theory_page({"a topic": [claim.judge([CaseValue("here", value)])]}, SINKS, SPREADS, {"torch": "2.13"})


def test_lines_are_closed_forms_and_marks_are_measured():
    line, marks, *_ = sinks_figure(SINKS).data
    assert (line.mode, list(line.y)) == ("lines", [0.52, 0.34])
    assert (marks.mode, list(marks.y)) == ("markers", [0.5, 0.3])
    assert line.name == "no positions"
    assert sinks_figure(SINKS).layout.shapes[0].y0 == 0.3


def test_a_line_for_every_sink():
    assert [(line.name, list(line.y)) for line in spread_figure(SPREADS).data] == [
        ("no sink", [1.0, 0.5, 0.2]),
        ("sink logit 8", [1.0, 0.9, 0.8]),
    ]


def test_the_page_has_the_numbers_and_the_verdicts():
    made = page(1.0)
    assert [section.title for section in made.sections] == [
        "A repeated token",
        "Rank collapse, and what slows it",
        "Claims: a topic",
    ]
    numbers, spreads, claims = (section.table for section in made.sections)
    assert numbers["measured"].tolist() == [0.5, 0.3, 0.9, 0.8]
    assert spreads["no sink"].tolist() == [1.0, 0.5, 0.2]
    assert claims["grade"].tolist() == ["not seen (here: 1)"]
    assert made.headlines[0].value == "0 of 1"
    assert made.provenance == {"versions": "torch 2.13"}


def test_text_is_text():
    assert EVIL not in render(page())


def test_without_curves_it_is_a_page_too():
    assert render(theory_page({}, [], [], {}))
