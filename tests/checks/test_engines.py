"""Lines for engines: only those that were measured, from entries with a source."""

from __future__ import annotations

from typing import Any

import pytest

from sinkscope.checks import Answered, Part, Row, engines
from sinkscope.statistics import Interval

ENTRY = {
    "engine": "some-engine",
    "line": "--some-option 1",
    "needs": {"section": "bos", "key": "one-BOS", "better": True, "gguf": True},
    "source": "some-engine@abc, README.md",
    "date": "2026-11-25",
}


def part(lost: float, key: str = "one-BOS") -> Part:
    row = Row(key, "one BOS", Interval(lost, lost - 0.01, lost + 0.01), "nats", 24, "small")
    return Part("bos", "BOS", {"prose": Answered(rows=(row,))})


@pytest.fixture(autouse=True)
def one_entry(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    entry = dict(ENTRY)
    monkeypatch.setattr(engines, "entries", lambda: [entry])
    return entry


def test_a_line_is_printed_where_its_arm_predicts_better() -> None:
    [line] = engines.lines([part(-0.1)], gguf=True)
    assert line["line"] == "--some-option 1"
    assert engines.lines([part(+0.1)], gguf=True) == ()


def test_a_line_whose_arm_was_not_measured_is_not_printed() -> None:
    assert engines.lines([part(-0.1, key="two-BOS")], gguf=True) == ()
    assert engines.lines([part(-0.1)], gguf=False) == ()


@pytest.mark.parametrize("missing", ["source", "date"])
def test_an_entry_that_was_not_checked_is_not_printed(missing: str, one_entry: dict[str, Any]) -> None:
    one_entry[missing] = ""
    assert engines.lines([part(-0.1)], gguf=True) == ()


def test_every_entry_names_source_and_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for entry in engines.entries():
        assert "@" in entry["source"]
        assert entry["date"].startswith("20")
