"""The terminal while a survey runs: a bar over the models, the model at work, and the table as it grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from sinkscope.report.terminal import Columns, note, plain, stderr, table
from sinkscope.survey import Progress, Row

SHOWN = 20  # rows of the growing table that fit on a screen


@contextmanager
def watching() -> Iterator[Callable[[Progress], None]]:
    """What to hand to `survey`: a live view on a terminal, a line per finished row elsewhere."""
    screen = stderr()
    if not screen.is_terminal:
        yield _Lines()
        return
    with Live(console=screen, transient=True, refresh_per_second=8) as live:
        yield _View(live)


class _Lines:
    """A line for every row when it is finished."""

    def __init__(self) -> None:
        self.told = 0

    def __call__(self, progress: Progress) -> None:
        for row in progress.rows[self.told :]:
            note(f"{row.label}, {row.input} input: {_outcome(row)}")
        self.told = len(progress.rows)


class _View:
    """A bar over the models, one over the samples of the model at work, and the newest rows."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            auto_refresh=False,
        )
        self.models = self.bars.add_task("models", total=None)
        self.samples = self.bars.add_task("", total=None)

    def __call__(self, progress: Progress) -> None:
        ended = not progress.label
        self.bars.update(self.models, completed=progress.model - (not ended), total=progress.models)
        name = plain(f"{progress.label}, {progress.input} input").plain
        self.bars.update(
            self.samples,
            description=name if progress.samples else f"loading {name}",
            completed=progress.done,
            total=progress.samples or None,
            visible=not ended,
        )
        self.live.update(Group(_growing(progress.rows), self.bars))


def _growing(rows: tuple[Row, ...]) -> Columns:
    lines = [(row.label, row.input, _outcome(row)) for row in rows[-SHOWN:]]
    return table(("model", "input", "sink rate at position 0"), lines, numbers_from=3)


def _outcome(row: Row) -> str:
    if row.sink_rate is None:
        return row.status
    return f"{row.sink_rate:.2f} % ({row.low:.2f} to {row.high:.2f})"
