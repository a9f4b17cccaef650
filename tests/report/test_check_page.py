"""The page of a report card: a table per section, and text from models and files stays text, in a notebook too."""

from __future__ import annotations

from sinkscope.checks import Answered, Card, Part, Row
from sinkscope.report.check_page import check_page
from sinkscope.report.page import render
from sinkscope.statistics import Interval

EVIL = "<script>alert('&')</script>"
ESCAPED = "&lt;script&gt;"
RECORD = {
    "model": f"./models/{EVIL}",
    "texts": [{"name": f"texts {EVIL}", "says": f"24 texts: {EVIL}", "n": 24, "sha256": "0" * 64}],
    "versions": {"torch": EVIL},
    "weights": "weights in 4 bits",
    **dict.fromkeys(("class", "dtype", "device", "parameters", "model_sha256"), EVIL),
}


def card() -> Card:
    row = Row("kv4", f"4 bits {EVIL}", Interval(0.01, 0.009, 0.011), "nats a token", 24, "small", advice=f"keep {EVIL}")
    sink = Part("sink", f"Sink {EVIL}", {f"texts {EVIL}": Answered(f"Position 0 ({EVIL}).", (row,))})
    missing = Part("chat", "Chat", {"texts": Answered(missing=f"no template {EVIL}")})
    line = {"engine": "an engine", "line": f"--flag {EVIL}", "source": "main.c", "date": "2025-01-01"}
    return Card(RECORD, (sink, missing), (line,))


def test_every_section_has_its_place() -> None:
    page = check_page(card())
    titles = [f"Sink {EVIL}", "Chat", "Lines for engines", "What the words mean"]
    assert [section.title for section in page.sections] == titles
    assert page.sections[0].table is not None
    assert page.sections[0].table["word"].tolist() == ["small"]
    assert page.sections[1].sentence == f"Not run: no template {EVIL}."


def test_text_stays_text() -> None:
    for html in (render(check_page(card())), card()._repr_html_()):
        assert EVIL not in html
        assert "<script>alert" not in html
        assert html.count(ESCAPED) > 3
        assert "weights in 4 bits" in html
        assert "--flag" in html
