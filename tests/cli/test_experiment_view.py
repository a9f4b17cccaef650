"""What a terminal shows while a sweep runs, and what a log gets."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path

import pytest
from rich.console import Console

from sinkscope.cli.experiment import seconds_left, watching_runs
from sinkscope.experiments import jobs
from sinkscope.experiments.running import SweepProgress
from sinkscope.experiments.sweep.sweeping import Sweep
from sinkscope.live import duration


class Job(jobs.Job):
    fingerprint = folder = train = metrics = None

    def model_dump(self, *, mode: str) -> dict:
        return {"steps": 100}


CELLS = {(label, seed): f"{label[-1]}{seed}" for label in ("[red]a", "b") for seed in (0, 1)}
JOBS = {name: Job() for name in CELLS.values()}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    for name, step, loss in (("a0", 100, 3.0), ("a1", 40, 4.0)):
        (tmp_path / name).mkdir()
        row = {"step": step, "validation_loss": loss, "sink/position_0": 12.5}
        (tmp_path / name / "log.jsonl").write_text(json.dumps(row) + "\n")
    return tmp_path


def moved(folder: Path, step: int) -> None:
    with (folder / "log.jsonl").open("a") as log:
        log.write(json.dumps({"step": step, "validation_loss": 3.5}) + "\n")


def shown(monkeypatch: pytest.MonkeyPatch, out: Path, stages: list, terminal: bool) -> list[str]:
    """What was on the screen after each stage, an hour apart."""
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=120, highlight=False, color_system=None)
    for module in ("sinkscope.cli.experiment.stderr", "sinkscope.report.terminal.stderr"):
        monkeypatch.setattr(module, lambda: console)
    clock = iter(range(0, 10**7, 3600))
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    screens = []
    with watching_runs(out) as watch:
        for sweep, happens in stages:
            now[0] = float(next(clock))
            happens()
            stream.seek(0)
            stream.truncate()
            watch(SweepProgress(CELLS, JOBS, sweep))
            if terminal:
                watch.live.refresh()
            screens.append(stream.getvalue())
    return screens


def nothing() -> None: ...


def test_the_table_fills_up(monkeypatch, out):
    first = Sweep(["b1"], ["a1", "b0"])
    second = Sweep([], ["a1", "b1"], done=["b0"])
    last = Sweep([], done=["a1", "b0"], failed={"b1": "no [room]"})
    began, later, end = shown(
        monkeypatch, out, [(first, nothing), (second, lambda: moved(out / "a1", 60)), (last, nothing)], terminal=True
    )
    assert "seed 0" in began
    assert "[red]a" in began
    assert "loss 3.00, sink 12.50" in began  # a run that existed before
    assert "40 % loss 4.00, sink 12.50" in began
    assert "0 %" in began
    assert "0 done, 2 running, 0 failed, 0 elsewhere, 1 waiting" in began
    assert "left" not in began
    assert "60 % loss 3.50, sink 12.50" in later
    assert "about 70 min left" in later  # 1.2 runs of 3 made in an hour, 1.4 left
    assert "b, seed 1: no [room]" in end
    assert "2 done, 0 running, 1 failed" in end
    assert "left" not in end


def test_time_left_is_known_before_the_first_run_ends(monkeypatch, out):
    sweep = Sweep([], ["a1"])
    _, later = shown(monkeypatch, out, [(sweep, nothing), (sweep, lambda: moved(out / "a1", 70))], terminal=True)
    assert "about 60 min left" in later  # 30 steps in an hour, 30 left


def test_a_log_gets_a_line_a_run(monkeypatch, out):
    sweeps = [Sweep(["b0"], ["a0"]), Sweep([], ["b0"], done=["a0"]), Sweep([], done=["a0"], failed={"b0": "no"})]
    screens = shown(monkeypatch, out, [(sweep, nothing) for sweep in sweeps], terminal=False)
    assert screens[0] == ""
    assert screens[1] == "[red]a, seed 0: loss 3.00, sink 12.50 (1 of 2)\n"
    assert screens[2] == "b, seed 0: no (2 of 2)\n"


def test_durations():
    assert [duration(seconds) for seconds in (40.0, 130.0, 5000.0, 7300.0)] == ["40 s", "2 min", "83 min", "2 h 2 min"]
    assert seconds_left(0.0, 3.0, 100.0) is None
    assert seconds_left(1.0, 0.0, 100.0) is None
    assert seconds_left(0.5, 1.5, 100.0) == 300.0
