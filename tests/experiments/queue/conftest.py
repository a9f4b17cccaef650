"""A queue over a question of the tests, and hands that make its runs without training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sinkscope.experiments import Question
from sinkscope.experiments.queue.order import Wanted
from sinkscope.experiments.queue.working import Queue, work_off
from sinkscope.experiments.sweep.sweeping import Ended
from sinkscope.experiments.sweep.worker import BUSY, SETTLED
from tests.experiments.helpers import planted
from tests.training.conftest import corpus  # noqa: F401  (fixture)

ORDER = (Wanted("small", ("two",), (1,), "first of all"),)


class Planting:
    """An executor that plants a run at once, with numbers that its name decides, and says so at the next look."""

    def __init__(self, failing: tuple[int, ...] = (), before: Callable[[str], None] = lambda name: None) -> None:
        self.failing, self.before = failing, before
        self.started: list[str] = []
        self.ends: list[Ended] = []
        self.stopped = False

    def __call__(self, jobs, out, scratch, workers) -> Planting:
        self.jobs, self.out = jobs, out
        return self

    def start(self, name: str) -> None:
        self.started.append(name)
        self.before(name)
        if len(self.started) - 1 in self.failing:
            self.ends.append(Ended(name, 2, "no room"))
            return
        self.ends.append(Ended(name, SETTLED if self.make(name) else BUSY))

    def make(self, name: str) -> bool:
        if not (self.out / name).exists():
            planted(name, self.out, self.jobs[name].seed, value=float(int(name[-6:], 16) % 100))
        return True

    def ended(self) -> Iterator[Ended]:
        ends, self.ends = self.ends, []
        yield from ends

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def question(small: Callable[..., Question]) -> Question:
    return small()


@pytest.fixture
def queue(question: Question, tmp_path: Path) -> Callable[..., Queue]:
    """A queue over that question; `folder`: where it reads and writes."""

    def run(hands: Planting, folder: Path = tmp_path / "here", **more: object) -> Queue:
        places = {"out": folder / "runs", "results": folder / "results", "folders": ()}
        return work_off(**{"questions": {"small": question}, "order": ORDER, "hands": hands, **places, **more})

    return run
