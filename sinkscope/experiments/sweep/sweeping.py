"""The state of a sweep, and the loop that all backends share; an executor trains the runs."""

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

AGAIN = 5.0  # seconds before a run that another process holds is retried
RETRIES = 3  # how often a run is resumed after its process was killed

Jobs = Mapping[str, Job]  # by the name of the run's folder


@dataclass
class Sweep:
    """The state of a sweep, as names of runs. `elsewhere`: held by another process; `failed` says why."""

    waiting: list[str]
    running: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def open(self) -> bool:
        """Whether any run is left."""
        return bool(self.waiting or self.running or self.elsewhere)


Watch = Callable[[Sweep], None]


@runtime_checkable
class SweepBackend(Protocol):
    """Trains jobs (by the names of their runs' folders) in a folder and returns the state of the sweep.

    Runs that are still waiting then were not trained, and the findings lack them.
    """

    def __call__(self, jobs: Jobs, out: Path, workers: int, watch: Watch) -> Sweep: ...


@dataclass(frozen=True)
class Ended:
    """The end of a run's work: the exit code, and why it failed if it did."""

    name: str
    code: int
    reason: str = ""


@runtime_checkable
class Executor(Protocol):
    """Trains runs. `ended` waits briefly and yields the runs that ended; it handles killed processes itself."""

    def start(self, name: str) -> None: ...

    def ended(self) -> Iterable[Ended]: ...

    def stop(self) -> None: ...


def drive(jobs: Jobs, executor: Executor, workers: int, watch: Watch) -> Sweep:
    """Train all jobs, at most `workers` at a time.

    A run that fails is noted and does not stop the others; one that another process holds is retried until it is
    settled. `watch` is called at every change and several times a second. On any interruption the executor is stopped;
    saved work is resumed next time. The clock is monotonic.
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
