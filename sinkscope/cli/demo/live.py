"""The terminal while the runs train: one row per run, redrawn as the logs grow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from rich.text import Text

from sinkscope.live import LiveView
from sinkscope.report.curves import LOSS, SINK, VALIDATION_LOSS
from sinkscope.report.runs import StoredRun, read_run
from sinkscope.report.terminal import stderr
from sinkscope.training import LOG

POLL = 0.5
RECENT = 12
BLOCKS = "▁▂▃▄▅▆▇█"
COLUMNS = 48
FULL_HEIGHT = 10.0
"""The sink rate, in percent, of a full block; higher ones stretch the scale."""

State = tuple[Sequence[StoredRun], float | None]

EXPLANATION = (
    "sink rate: in how many of all (layer, head) pairs, in percent, the first token receives\n"
    "more than 0.3 of the attention, on average over the tokens that can see it"
)


@runtime_checkable
class TrainingProcess(Protocol):
    """A process to follow, see `Child`."""

    @property
    def label(self) -> str: ...

    @property
    def running(self) -> bool: ...

    def check(self) -> None:
        """Raise `ChildFailed` if it ended with an error."""


def watch(
    started: Sequence[TrainingProcess],
    folders: Sequence[Path],
    steps: int,
    until: float | None = None,
    enough: Callable[[StoredRun], bool] = lambda run: True,
    patience: float = 0.0,
) -> list[StoredRun]:
    """Follow the runs until all have ended, or until a time; return them as they are then.

    Args:
        started: The processes.
        folders: The folders of their runs.
        steps: Steps of a whole run.
        until: The time, on the monotonic clock; None for no limit.
        enough: Whether a run got far enough; others are given `patience` more seconds.
        patience: Those seconds.

    Raises `ChildFailed` when a process fails.
    """
    rows: LiveView[State] = LiveView(
        lambda now: view(now[0], steps, now[1]), lambda now: lines(now[0], steps), stderr()
    )
    with rows as show:
        while True:
            ended = not any(child.running for child in started)
            runs = [stored(child.label, folder) for child, folder in zip(started, folders, strict=True)]
            left = None if until is None else until - time.monotonic()
            show((runs, left))
            for child in started:
                child.check()
            late = left is not None and left <= 0 and (left <= -patience or all(map(enough, runs)))
            if ended or late:
                return runs
            time.sleep(POLL)


def lines(runs: Sequence[StoredRun], steps: int) -> Iterator[tuple[tuple[str, int], str]]:
    """One line per evaluation."""
    for run in runs:
        for row in run.rows:
            if row.get(SINK) is not None:
                loss = "" if row.get(VALIDATION_LOSS) is None else f" validation loss {row[VALIDATION_LOSS]:.3f},"
                line = f"{run.label}: step {row['step']}/{steps},{loss} sink rate {row[SINK]:.1f} %"
                yield (run.label, row["step"]), line


def stored(label: str, folder: Path) -> StoredRun:
    """A run as logged so far; without rows if it has not begun."""
    return read_run(folder, label) if (folder / LOG).is_file() else StoredRun(label, ())


def view(runs: Sequence[StoredRun], steps: int, left: float | None = None) -> Text:
    """Two lines per run; `left` are the seconds until the runs are stopped, None if they are not."""
    scale = max([FULL_HEIGHT, *(value for run in runs for value in run.curve(SINK)[1])])
    lines = [line for run in runs for line in _lines(run, steps, scale, left)]
    ruler = Text(f"{'':<16}each column is {steps / COLUMNS:.0f} steps, a full block is {scale:.0f} %", "dim")
    return Text("\n").join([*lines, ruler])


def _lines(run: StoredRun, steps: int, scale: float, left: float | None) -> list[Text]:
    losses = f"loss {_number(run.last(LOSS), '{:.3f}')}  validation {_number(run.last(VALIDATION_LOSS), '{:.3f}')}"
    pace = f"{_number(run.last('tokens_per_second'), '{:,.0f}')} tokens/s"
    time_left = _clock(left) if left is not None else _time_left(run, steps)
    progress = f"{run.step:>5}/{steps}  {losses}  {pace}  {time_left} left"
    rate = f"{_number(run.last(SINK), '{:.1f} %'):>7} "
    return [
        Text.assemble((f"{run.label:<8}", "bold"), progress),
        Text.assemble("    sink", (rate, "bold"), (timeline(*run.curve(SINK), steps, scale), "dark_orange")),
    ]


def timeline(at: Sequence[int], values: Sequence[float], steps: int, scale: float) -> str:
    """Values over all steps of a run as 48 block characters; a full block is `scale`, a dot has not been reached."""
    line = ""
    mean = 0.0
    for column in range(COLUMNS):
        start, end = column * steps / COLUMNS, (column + 1) * steps / COLUMNS
        inside = [value for step, value in zip(at, values, strict=True) if start < step <= end]
        mean = sum(inside) / len(inside) if inside else mean
        reached = bool(at) and at[-1] > start
        line += BLOCKS[min(len(BLOCKS) - 1, int(mean / scale * len(BLOCKS)))] if reached else "·"
    return line


def _time_left(run: StoredRun, steps: int) -> str:
    """From the newest pace, which a continued run has too."""
    times, seconds = run.curve("seconds")
    if len(times) < 2 or times[-1] == times[-RECENT:][0]:
        return "…"
    pace = (seconds[-1] - seconds[-RECENT:][0]) / (times[-1] - times[-RECENT:][0])
    return _clock((steps - run.step) * pace)


def _clock(seconds: float) -> str:
    return "{}:{:02d}".format(*divmod(max(0, round(seconds)), 60))


def _number(value: float | None, form: str) -> str:
    return "…" if value is None else form.format(value)
