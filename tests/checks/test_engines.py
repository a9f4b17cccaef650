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

SLIDING, SKIP = "sliding_attention", "--kv-cache-dtype-skip-layers"


def part(lost: float, key: str = "one-BOS") -> Part:
    advice = "send one BOS" if lost < 0 else "as good as no BOS"
    row = Row(key, "one BOS", Interval(lost, lost - 0.01, lost + 0.01), "nats", 24, "small", advice=advice)
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


def test_a_line_is_printed_only_where_its_arm_is_advised_on_all_texts(one_entry: dict[str, Any]) -> None:
    one_entry["needs"] = {"section": "cache", "key": "q4"}

    def measured(*words: str) -> Part:
        rows = [
            Row(
                "q4",
                "q4",
                Interval(0.1, 0.05, 0.15),
                "KL a token",
                24,
                word,
                advice="q4 is safe" if word == "small" else "",
            )
            for word in words
        ]
        by_texts = {name: Answered(rows=(row,)) for name, row in zip(("prose", "code"), rows, strict=False)}
        return Part("cache", "Cache", by_texts)

    assert engines.lines([measured("small")], gguf=False)
    assert engines.lines([measured("small", "small")], gguf=False)
    assert engines.lines([measured("small", "costs")], gguf=False) == ()
    alone = measured("small")
    not_on_code = Part("cache", "Cache", {**alone.by_texts, "code": Answered(missing="too few texts")})
    assert engines.lines([not_on_code], gguf=False) == ()


@pytest.mark.parametrize(
    ("line", "windows", "printed"),
    [
        ("--kv-cache-dtype fp8", [], "--kv-cache-dtype fp8"),
        ("--kv-cache-dtype fp8", [SLIDING], f"--kv-cache-dtype fp8 {SKIP} sliding_window"),
        ("--kv-cache-dtype fp8, with k_scale", [SLIDING], f"--kv-cache-dtype fp8 {SKIP} sliding_window, with k_scale"),
        (f"--kv-cache-dtype fp8 {SKIP} 0 5", [SLIDING], f"--kv-cache-dtype fp8 {SKIP} 0 5 sliding_window"),
        ("--kv-cache-dtype fp8", ["chunked_attention"], None),
        ("-ctk q8_0 -ctv q8_0", [], "-ctk q8_0 -ctv q8_0"),
        ("-ctk q8_0 -ctv q8_0", [SLIDING], None),
    ],
)
def test_layers_with_a_window_are_left_whole_or_no_line_is_printed(
    line: str, windows: list[str], printed: str | None, one_entry: dict[str, Any]
) -> None:
    """The arms leave them whole."""
    one_entry |= {"line": line, "needs": {"section": "cache", "key": "rounded"}}
    row = Row("rounded", "rounded", Interval(0.01, 0.0, 0.02), "KL a token", 24, "free", advice="rounded is safe")
    measured = Part("cache", "Cache bits", {"prose": Answered(rows=(row,), facts={"windows": windows})})
    assert [each["line"] for each in engines.lines([measured], gguf=False)] == ([] if printed is None else [printed])


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
