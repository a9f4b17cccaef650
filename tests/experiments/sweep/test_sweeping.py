"""The loop that backends share, with an executor that does as it is planned."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sinkscope.experiments import jobs
from sinkscope.experiments.sweep import sweeping
from sinkscope.experiments.sweep.sweeping import Ended, Sweep, drive
from sinkscope.experiments.sweep.worker import BUSY, FAILED, SETTLED


class Job(jobs.Job):
    """One that nobody reads."""

    folder = fingerprint = train = metrics = model_dump = None


class Planned:
    """Ends runs in the order in which they began, one a look, with the codes that are planned for them."""

    def __init__(self, codes: dict[str, list[int]]) -> None:
        self.codes, self.going, self.most, self.stopped = codes, [], 0, False
        self.started: list[str] = []

    def start(self, name: str) -> None:
        self.started.append(name)
        self.going.append(name)
        self.most = max(self.most, len(self.going))

    def ended(self) -> Iterator[Ended]:
        if self.going:
            name = self.going.pop(0)
            yield Ended(name, self.codes[name].pop(0), f"why {name}")

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "AGAIN", 0.02)


def driven(codes: dict[str, list[int]], workers: int = 2) -> tuple[Planned, Sweep, list[Sweep]]:
    executor, seen = Planned(codes), []

    def watch(sweep: Sweep) -> None:
        seen.append(Sweep(list(sweep.waiting), list(sweep.running), list(sweep.elsewhere), list(sweep.done)))

    return executor, drive({name: Job() for name in codes}, executor, workers, watch), seen


def test_every_run_is_made_once_and_never_more_at_once_than_allowed() -> None:
    executor, sweep, seen = driven({name: [SETTLED] for name in "abcde"})
    assert executor.started == sweep.done == list("abcde")
    assert executor.most == 2
    assert executor.stopped
    assert (seen[0].running, seen[0].waiting) == (["a", "b"], ["c", "d", "e"])
    assert seen[-1].done == list("abcde")
    assert all(sorted([*s.waiting, *s.running, *s.elsewhere, *s.done]) == list("abcde") for s in seen)


def test_a_failure_has_its_reason_and_stops_nobody() -> None:
    _, sweep, _ = driven({"a": [FAILED], "b": [SETTLED], "c": [-9]})
    assert (sweep.done, sweep.failed) == (["b"], {"a": "why a", "c": "why c"})


def test_a_busy_run_is_tried_until_it_is_settled() -> None:
    executor, sweep, seen = driven({"a": [BUSY, BUSY, SETTLED], "b": [SETTLED]})
    assert sorted(sweep.done) == ["a", "b"]
    assert executor.started.count("a") == 3
    assert any(stage.elsewhere == ["a"] for stage in seen)


def test_the_executor_is_stopped_whatever_interrupts() -> None:
    executor = Planned({"a": [SETTLED]})

    def interrupted(sweep: Sweep) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drive({"a": Job()}, executor, 1, interrupted)
    assert executor.stopped
