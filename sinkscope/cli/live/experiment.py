"""The terminal while a sweep runs: what is done, running, failed, the time left, and the table filling up."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from sinkscope.live import LiveView, duration
from sinkscope.report.terminal import flat, plain, stderr, table

if TYPE_CHECKING:
    from sinkscope.experiments import Job, Progress, Sweep

SHOWN = (("validation_loss", "loss"), ("sink/position_0", "sink"))
OLD = "old"  # the state of a run that existed before


def watching(out: Path) -> LiveView[Progress]:
    """What to hand to `run`: a live view on a terminal, a line per settled run elsewhere."""
    rows = _Rows(out)
    return LiveView(rows.view, rows.lines, stderr(), every=1.0, status=rows.status)


class Reader:
    """What the logs of runs say; those of settled runs are read once."""

    def __init__(self, out: Path) -> None:
        from sinkscope.experiments import RunStore

        self.store = RunStore(out)
        self.settled: dict[str, dict[str, Any]] = {}
        self.lengths: dict[str, Any] = {}

    def newest(self, name: str, state: str) -> dict[str, Any]:
        from sinkscope.training import Run

        if name in self.settled:
            return self.settled[name]
        row = self.store.progress(Run(self.store.path / name))
        if state in ("done", "failed", OLD):
            self.settled[name] = row
        return row

    def share(self, jobs: Mapping[str, Job], name: str, state: str) -> float:
        """Which part of a run is made, 0 to 1."""
        if state in ("done", "failed"):
            return 1.0
        if name not in self.lengths:
            fields = flat(jobs[name].model_dump(mode="json"))
            self.lengths[name] = next((value for field, value in fields if field.split(".")[-1] == "steps"), 0)
        steps = self.lengths[name]
        return min(1.0, self.newest(name, state).get("step", 0) / steps) if steps else 0.0


class _Rows:
    """The question's variations × seeds; a cell is a run."""

    def __init__(self, out: Path) -> None:
        self.reader = Reader(out)
        self.settled: list[str] = []  # names of runs, in the order in which they were seen to be
        self.began: tuple[float, float] | None = None  # when, and how many runs were made by then, in parts

    def lines(self, progress: Progress) -> Iterator[tuple[str, str]]:
        sweep = progress.sweep
        self.settled += [name for name in [*sweep.done, *sweep.failed] if name not in self.settled]
        for number, name in enumerate(self.settled, 1):
            said = sweep.failed.get(name) or values(self.reader.newest(name, "done")) or "settled"
            yield name, f"{_called(progress, name)}: {said} ({number} of {len(_states(sweep))})"

    def status(self, progress: Progress) -> str:
        """What runs, and how long it will take."""
        states = _states(progress.sweep)
        at = [
            f"{_called(progress, name)}: {100 * self.reader.share(progress.jobs, name, state):.0f} % "
            f"{values(self.reader.newest(name, state))}".strip()
            for name, state in states.items()
            if state == "running"
        ]
        return "; ".join([*at, f"{counts(progress.sweep)}{self._left(progress, states)}"])

    def view(self, progress: Progress) -> Group:
        states = _states(progress.sweep)
        seeds = sorted({seed for _, seed in progress.cells})
        labels = dict.fromkeys(label for label, _ in progress.cells)
        rows = [
            (label, *(self._cell(progress, states, progress.cells[label, seed]) for seed in seeds)) for label in labels
        ]
        columns = ("variation", *(f"seed {seed}" for seed in seeds))
        failures = [plain(f"{_called(progress, name)}: {why}") for name, why in progress.sweep.failed.items()]
        found = table(columns, rows, numbers_from=1)
        return Group(found, *failures, Text(f"{counts(progress.sweep)}{self._left(progress, states)}"))

    def _cell(self, progress: Progress, states: Mapping[str, str], name: str) -> str:
        state = states.get(name, OLD)
        newest = self.reader.newest(name, state)
        if state in ("done", OLD):
            return values(newest) or "done"
        if state != "running":
            return state
        return f"{100 * self.reader.share(progress.jobs, name, state):.0f} % {values(newest)}".strip()

    def _left(self, progress: Progress, states: Mapping[str, str]) -> str:
        made = sum(self.reader.share(progress.jobs, name, state) for name, state in states.items())
        if self.began is None:
            self.began = (time.monotonic(), made)
        seconds = seconds_left(made - self.began[1], len(states) - made, time.monotonic() - self.began[0])
        return "" if seconds is None else f", about {duration(seconds)} left"


def seconds_left(made: float, left: float, elapsed: float) -> float | None:
    """Seconds until `left` runs are made, when `made` took `elapsed`, both in parts of runs; None where none tells."""
    return left * elapsed / made if made > 0 and left > 0 else None


def values(row: Mapping[str, Any]) -> str:
    """The newest loss and sink rate of a run's log: `loss 3.21, sink 12.40`."""
    return ", ".join(f"{name} {row[key]:.2f}" for key, name in SHOWN if row.get(key) is not None)


def counts(sweep: Sweep) -> str:
    """How many runs of a sweep are in which state."""
    states = list(_states(sweep).values())
    return ", ".join(
        f"{states.count(state)} {state}" for state in ("done", "running", "failed", "elsewhere", "waiting")
    )


def _states(sweep: Sweep) -> dict[str, str]:
    """The state of every run of a sweep, by name."""
    named = {
        "waiting": sweep.waiting,
        "running": sweep.running,
        "elsewhere": sweep.elsewhere,
        "done": sweep.done,
        "failed": list(sweep.failed),
    }
    return {name: state for state, names in named.items() for name in names}


def _called(progress: Progress, name: str) -> str:
    """What a person calls a run: all variations and seeds that it stands for."""
    return ", ".join(f"{label}, seed {seed}" for (label, seed), run in progress.cells.items() if run == name)
