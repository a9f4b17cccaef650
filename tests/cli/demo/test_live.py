from __future__ import annotations

import io
import json
import time
from dataclasses import dataclass, field

import pytest
from rich.console import Console

from sinkscope.cli.demo.children import ChildFailed
from sinkscope.cli.demo.live import stored, timeline, view, watch
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
    monkeypatch.setattr("sinkscope.cli.demo.live.POLL", 0.0)


def drawn(renderable, width=140):
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(renderable)
    return console.file.getvalue()


def test_the_view_shows_every_run_as_it_stands():
    text = drawn(view([StoredRun("softmax", ROWS), StoredRun("sigmoid", ())], 1100))
    softmax, sink, sigmoid, empty = text.splitlines()[:4]
    assert softmax.split() == [
        *("softmax", "600/1100", "loss", "3.000", "validation", "3.100", "8,000", "tokens/s", "4:10", "left")
    ]
    assert "6.0 %" in sink
    assert sigmoid.split()[:2] == ["sigmoid", "0/1100"]
    assert "…" in sigmoid
    assert empty.count("·") == 48


def test_the_view_fits_a_terminal_of_80_columns():
    busy = StoredRun(
        "softmax", tuple(row | {"tokens_per_second": 12345.0, "seconds": row["step"] * 2.0} for row in ROWS)
    )
    assert all(len(line) <= 80 for line in str(view([busy], 1100)).splitlines())


def test_a_limit_shows_the_time_until_it():
    assert "0:42 left" in drawn(view([StoredRun("softmax", ROWS)], 1100, left=42.2))


def test_a_timeline_rises_where_its_values_do():
    line = timeline([25, 50, 75], [0.0, 5.0, 10.0], steps=100, scale=10.0)
    assert line == "▁" * 23 + "▅" * 12 + "█" + "·" * 12
    assert timeline([], [], steps=100, scale=10.0) == "·" * 48
    assert len(timeline(range(1101), [1.0] * 1101, steps=1100, scale=10.0)) == 48


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


def test_a_run_that_is_not_enough_is_waited_for_and_not_for_ever(tmp_path):
    began, asked = time.monotonic(), []

    def enough(run):
        asked.append(run)
        return len(asked) > 2

    endless = Played("softmax", tmp_path, rows=list(ROWS) * 2000)
    watch([endless], [tmp_path], 600, until=began, enough=enough, patience=60)
    assert len(asked) == 3
    watch([endless], [tmp_path], 600, until=time.monotonic() - 1, enough=lambda run: False, patience=0.5)
    assert time.monotonic() - began < 30
