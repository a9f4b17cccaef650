"""Where a sweep stands, and the loop that every backend shares; its executor makes the runs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from sinkscope.errors import InputError
from sinkscope.experiments.jobs import Job
from sinkscope.experiments.sweep.worker import BUSY, SETTLED

AGAIN = 5.0  # seconds until a run that another process holds is tried again
RETRIES = 3  # how often a run whose process is killed is taken up again

Jobs = Mapping[str, Job]  # by the name of the run's folder


@dataclass
class Sweep:
    """Where a sweep stands: names of runs. `elsewhere`: held by another process; `failed` says why."""

    waiting: list[str]
    running: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def open(self) -> bool:
        """Whether anything is left to be made."""
        return bool(self.waiting or self.running or self.elsewhere)


Watch = Callable[[Sweep], None]


@runtime_checkable
class SweepBackend(Protocol):
    """Does jobs (by the names of their runs' folders) in a folder and says where it stands.

    What the returned sweep has waiting was not made, and is left out of the findings.
    """

    def __call__(self, jobs: Jobs, out: Path, workers: int, watch: Watch) -> Sweep: ...


@dataclass(frozen=True)
class Ended:
    """A run whose work came to its end: the exit code, and why it failed where it did."""

    name: str
    code: int
    reason: str = ""


@runtime_checkable
class Executor(Protocol):
    """What makes runs. `ended` waits a moment and yields what ended since; it deals with killed processes itself."""

    def start(self, name: str) -> None: ...

    def ended(self) -> Iterable[Ended]: ...

    def stop(self) -> None: ...


def drive(jobs: Jobs, executor: Executor, workers: int, watch: Watch) -> Sweep:
    """Have all jobs done, at most `workers` at a time.

    A run that fails is noted and does not stop the others; one that another process holds is tried again until it is
    settled. `watch` is called at every change and several times a second. Whatever interrupts, the executor is stopped;
    what it has saved is resumed next time. Time is measured by a clock that never jumps.
    """
    sweep = Sweep(waiting=list(jobs))
    later: deque[tuple[float, str]] = deque()
    try:
        while sweep.open:
            while later and later[0][0] <= time.monotonic():
                name = later.popleft()[1]
                sweep.elsewhere.remove(name)
                sweep.waiting.append(name)
            while sweep.waiting and len(sweep.running) < workers:
                sweep.running.append(sweep.waiting.pop(0))
                executor.start(sweep.running[-1])
            watch(sweep)
            for end in executor.ended():
                sweep.running.remove(end.name)
                if end.code == BUSY:
                    sweep.elsewhere.append(end.name)
                    later.append((time.monotonic() + AGAIN, end.name))
                elif end.code == SETTLED:
                    sweep.done.append(end.name)
                else:
                    sweep.failed[end.name] = end.reason or f"exit code {end.code}, without a message"
    finally:
        executor.stop()
    watch(sweep)
    return sweep


def require_workers(workers: int) -> None:
    """Raises `InputError` for fewer than one worker."""
    if workers < 1:
        raise InputError(f"workers = {workers}: at least 1")
