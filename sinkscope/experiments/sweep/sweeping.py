"""Where a sweep stands, and the loop that every backend shares: what a run is made by is the crew's business."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from sinkscope.errors import InputError
from sinkscope.experiments.sweep.jobs import Job
from sinkscope.experiments.sweep.work import BUSY, SETTLED

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


@dataclass(frozen=True)
class Ended:
    """A piece of work that came to its end: the exit code of `work`, and what was said where it failed."""

    name: str
    code: int
    said: str = ""


@runtime_checkable
class Crew(Protocol):
    """Those who make runs. `ended` waits a moment and tells what ended since; a killed process is its own affair."""

    def start(self, name: str) -> None: ...

    def ended(self) -> Iterable[Ended]: ...

    def stop(self) -> None: ...


def drive(jobs: Jobs, crew: Crew, at_once: int, watch: Watch) -> Sweep:
    """Have all jobs done, at most `at_once` at a time.

    A run that fails is noted and does not stop the others; one that another process holds is tried again until it is
    settled. `watch` sees every change and several looks a second. Whatever interrupts, the crew is stopped; what it
    has saved is resumed next time. Time is measured by a clock that never jumps.
    """
    sweep = Sweep(waiting=list(jobs))
    later: deque[tuple[float, str]] = deque()
    try:
        while sweep.open:
            while later and later[0][0] <= time.monotonic():
                name = later.popleft()[1]
                sweep.elsewhere.remove(name)
                sweep.waiting.append(name)
            while sweep.waiting and len(sweep.running) < at_once:
                sweep.running.append(sweep.waiting.pop(0))
                crew.start(sweep.running[-1])
            watch(sweep)
            for end in crew.ended():
                sweep.running.remove(end.name)
                if end.code == BUSY:
                    sweep.elsewhere.append(end.name)
                    later.append((time.monotonic() + AGAIN, end.name))
                elif end.code == SETTLED:
                    sweep.done.append(end.name)
                else:
                    sweep.failed[end.name] = end.said or f"exit code {end.code}, and no word"
    finally:
        crew.stop()
    watch(sweep)
    return sweep


def require_workers(workers: int) -> None:
    """Raises `InputError` for fewer than one worker."""
    if workers < 1:
        raise InputError(f"workers = {workers}: at least 1")
