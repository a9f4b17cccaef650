from __future__ import annotations

import io
import json
import time
from dataclasses import dataclass, field

import pytest
from rich.console import Console

from sinkscope.demo.children import ChildFailed
from sinkscope.demo.live import sparkline, stored, view, watch
from sinkscope.report.runs import StoredRun

ROWS = tuple(
    {"step": step, "loss": 3.0, "validation_loss": 3.1, "sink/position_0": step / 100, "tokens_per_second": 8000.0}
    | {"seconds": step / 2}
    for step in range(100, 700, 100)
)


@dataclass
class Played:
    """A child that logs a row each time it is asked whether it runs."""

    label: str
    folder: object
    rows: list = field(default_factory=lambda: list(ROWS))
    failure: Exception | None = None

    @property
    def running(self):
        if not self.rows:
            return False
        with open(self.folder / "log.jsonl", "a") as log:
            log.write(json.dumps(self.rows.pop(0)) + "\n")
        return True

    def check(self):
        if self.failure:
            raise self.failure


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr("sinkscope.demo.live.POLL", 0.0)


def drawn(renderable, width=140):
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(renderable)
    return console.file.getvalue()


def test_the_view_shows_every_run_as_it_stands():
    text = drawn(view([StoredRun("softmax", ROWS), StoredRun("sigmoid", ())], 1100))
    softmax, sigmoid = text.splitlines()[1:3]
    assert "softmax" in softmax
    assert "600/1100" in softmax
    assert "3.000" in softmax
    assert "6.0 %" in softmax
    assert "8,000" in softmax
    assert "4:10" in softmax  # 500 steps of half a second
    assert "0/1100" in sigmoid
    assert "…" in sigmoid


def test_a_limit_shows_the_time_until_it():
    assert "0:42" in drawn(view([StoredRun("softmax", ROWS)], 1100, left=42.2))


def test_a_sparkline_rises_with_its_values():
    assert sparkline([0.0, 5.0, 10.0], 10.0) == "▁▅█"
    assert sparkline([], 10.0) == ""
    assert len(sparkline([1.0] * 500, 10.0)) == 24


def test_watching_follows_the_logs_to_the_end(tmp_path, capsys):
    [run] = watch([Played("softmax", tmp_path)], [tmp_path], 600)
    assert run.step == 600
    lines = capsys.readouterr().err.splitlines()
    assert len([line for line in lines if line.startswith("softmax: step")]) == 6
    assert "softmax: step 300/600, validation loss 3.100, sink rate 3.0 %" in lines


def test_watching_stops_at_the_time_limit(tmp_path):
    endless = Played("softmax", tmp_path, rows=list(ROWS) * 2000)
    began = time.monotonic()
    watch([endless], [tmp_path], 600, until=began + 0.2)
    assert time.monotonic() - began < 5
    assert endless.rows


def test_a_failure_ends_the_watch(tmp_path):
    with pytest.raises(ChildFailed):
        watch([Played("softmax", tmp_path, failure=ChildFailed("broken"))], [tmp_path], 600)


def test_a_run_that_has_not_begun_has_no_rows(tmp_path):
    assert stored("softmax", tmp_path / "absent").rows == ()
