"""The loop that backends share, with a crew that does as it is told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sinkscope.experiments.sweep import sweeping
from sinkscope.experiments.sweep.sweeping import Ended, Sweep, drive
from sinkscope.experiments.sweep.work import BUSY, FAILED, SETTLED


class Job:
    def folder(self, fingerprint: dict) -> str:
        return "a-run"

    def model_dump(self, *, mode: str) -> dict:
        return {"mode": mode}


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
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "AGAIN", 0.02)


def driven(codes: dict[str, list[int]], at_once: int = 2) -> tuple[Planned, Sweep, list[Sweep]]:
    crew, seen = Planned(codes), []

    def watch(sweep: Sweep) -> None:
        seen.append(Sweep(list(sweep.waiting), list(sweep.running), list(sweep.elsewhere), list(sweep.done)))

    return crew, drive({name: Job() for name in codes}, crew, at_once, watch), seen


def test_every_run_is_made_once_and_never_more_at_once_than_allowed() -> None:
    crew, sweep, seen = driven({name: [SETTLED] for name in "abcde"})
    assert crew.started == sweep.done == list("abcde")
    assert crew.most == 2
    assert crew.stopped
    assert (seen[0].running, seen[0].waiting) == (["a", "b"], ["c", "d", "e"])
    assert seen[-1].done == list("abcde")
    assert all(sorted([*s.waiting, *s.running, *s.elsewhere, *s.done]) == list("abcde") for s in seen)


def test_a_failure_has_its_reason_and_stops_nobody() -> None:
    _, sweep, _ = driven({"a": [FAILED], "b": [SETTLED], "c": [-9]})
    assert (sweep.done, sweep.failed) == (["b"], {"a": "why a", "c": "why c"})


def test_a_busy_run_is_tried_until_it_is_settled() -> None:
    crew, sweep, seen = driven({"a": [BUSY, BUSY, SETTLED], "b": [SETTLED]})
    assert sorted(sweep.done) == ["a", "b"]
    assert crew.started.count("a") == 3
    assert any(stage.elsewhere == ["a"] for stage in seen)


def test_the_crew_is_stopped_whatever_interrupts() -> None:
    crew = Planned({"a": [SETTLED]})

    def interrupted(sweep: Sweep) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drive({"a": Job()}, crew, 1, interrupted)
    assert crew.stopped
