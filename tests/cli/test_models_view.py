"""What a terminal shows while many models are measured, and what a log gets."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from sinkscope.cli.measure_many import watching_models
from sinkscope.measurement import SurveyProgress, SurveyRow

DONE = SurveyRow(model="a", label="[red]a", input="random", status="measured", sink_rate=12.5, low=10.0, high=15.0)
FAILED = SurveyRow(model="b", label="b", input="random", status="failed", reason="no")
STAGES = [
    SurveyProgress(1, 2, "[red]a", (), "random"),
    SurveyProgress(1, 2, "[red]a", (), "random", 2, 4),
    SurveyProgress(2, 2, "b", (DONE,), "random"),
    SurveyProgress(2, 2, "", (DONE, FAILED)),
]


def shown(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> list[str]:
    """What was on the screen after each stage."""
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=100, highlight=False, color_system=None)
    for module in ("sinkscope.cli.measure_many.stderr", "sinkscope.report.terminal.stderr"):
        monkeypatch.setattr(module, lambda: console)
    screens = []
    with watching_models() as watch:
        for stage in STAGES:
            stream.seek(0)
            stream.truncate()
            watch(stage)
            if terminal:
                watch.live.refresh()
            screens.append(stream.getvalue())
    return screens


def test_a_terminal_shows_bars_and_the_growing_table(monkeypatch):
    loading, batch, second, end = shown(monkeypatch, terminal=True)
    assert "loading [red]a, random input" in loading
    assert "2/4" in batch
    assert "0/2" in batch
    assert "12.50 % (10.00 to 15.00)" in second
    assert "1/2" in second
    assert "failed" in end
    assert "2/2" in end


def test_a_log_gets_a_line_a_row(monkeypatch):
    screens = shown(monkeypatch, terminal=False)
    assert screens[:2] == ["", ""]
    assert screens[2] == "[red]a, random input: 12.50 % (10.00 to 15.00)\n"
    assert screens[3] == "b, random input: failed\n"
