"""The terminal while a sweep runs: what is done, running, failed, the time left, and the table filling up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.live import Live
from rich.text import Text

from sinkscope.report.terminal import note, plain, stderr, table

if TYPE_CHECKING:
    from sinkscope.experiments.pool import Sweep

COLUMNS = ("run", "", "step", "loss", "sink at 0")


@contextmanager
def watching(out: Path) -> Iterator[Callable[[Sweep], None]]:
    """What to hand to `run`: a live view on a terminal, a line per settled run elsewhere."""
    screen = stderr()
    if not screen.is_terminal:
        yield _Lines()
        return
    with Live(console=screen, refresh_per_second=2) as live:
        yield _View(live, out)


class _Lines:
    """A line for every run when it is settled."""

    def __init__(self) -> None:
        self.told: set[str] = set()

    def __call__(self, sweep: Sweep) -> None:
        for name in [*sweep.done, *sweep.failed]:
            if name not in self.told:
                self.told.add(name)
                note(f"{name}: {sweep.failed.get(name, 'settled')} ({len(self.told)} of {_total(sweep)})")


class _View:
    def __init__(self, live: Live, out: Path) -> None:
        from sinkscope.experiments.runstore import RunStore

        self.live, self.store, self.began, self.shown = live, RunStore(out), time.monotonic(), 0.0

    def __call__(self, sweep: Sweep) -> None:
        if time.monotonic() - self.shown < 1 and (sweep.running or sweep.waiting):
            return
        self.shown = time.monotonic()
        states = [
            ("running", sweep.running),
            ("elsewhere", sweep.elsewhere),
            ("done", sweep.done),
            ("failed", sweep.failed),
        ]
        rows = [self._row(name, state, sweep.failed.get(name)) for state, names in states for name in names]
        counts = ", ".join(f"{len(names)} {state}" for state, names in [*states, ("waiting", sweep.waiting)])
        self.live.update(Group(table(COLUMNS, rows, numbers_from=2), Text(f"{counts}{self._left(sweep)}")))

    def _row(self, name: str, state: str, reason: str | None) -> tuple[Any, ...]:
        from sinkscope.training import Run

        last = self.store.progress(Run(self.store.path / name))
        values = (last.get("validation_loss"), last.get("sink/position_0"))
        shown = ("–" if value is None else f"{value:.2f}" for value in values)
        return (plain(name), reason or state, last.get("step", "–"), *shown)

    def _left(self, sweep: Sweep) -> str:
        ended = len(sweep.done) + len(sweep.failed)
        if not ended or not (open_ := _total(sweep) - ended):
            return ""
        minutes = (time.monotonic() - self.began) / ended * open_ / 60
        return f", about {minutes:.0f} min left"


def _total(sweep: Sweep) -> int:
    return sum(map(len, (sweep.waiting, sweep.running, sweep.elsewhere, sweep.done, sweep.failed)))
