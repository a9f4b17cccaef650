"""A queue makes what is missing, whatever interrupts it, and shares the work with another."""

from __future__ import annotations

import json
import random
import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from sinkscope.errors import InputError
from sinkscope.experiments import known, verdicts
from sinkscope.experiments.queue import working
from tests.experiments.helpers import timeless
from tests.experiments.queue.conftest import Planting


def record(folder: Path) -> object:
    return timeless(folder / "results" / "nano" / "small.json")


def seeds(found) -> dict[str, list[int]]:
    return {label: list(runs) for label, runs in found.runs.items()}


def test_a_queue_makes_what_is_missing_the_most_valuable_first(queue, question, tmp_path):
    hands = Planting()
    done = queue(hands)
    called = [planned.called for planned in done.done.values()]
    assert called[0] == "small: two, seed 1"
    assert sorted(called[1:6]) == sorted(
        f"small: {label}, seed {seed}" for label in ("one", "two") for seed in range(3) if (label, seed) != ("two", 1)
    )
    assert len(set(hands.started)) == len(hands.started)
    assert hands.stopped
    found = known([tmp_path / "here" / "results"], "nano", {"small": question}).of(question)
    assert all(list(range(3)) == made[:3] for made in seeds(found).values())
    assert {verdict.outcome for verdict in verdicts(question, found)} <= {"supported", "refuted"}
    assert found.provenance["hosts"][0]["runs"] == len(hands.started)


def test_nothing_is_made_twice(queue):
    queue(Planting())
    again = Planting()
    assert (queue(again).done, again.started) == ({}, [])


@pytest.mark.parametrize("compiled", [False, True])
def test_a_compiled_queue_makes_the_same_runs(queue, tmp_path, compiled):
    queue(Planting(), tmp_path / "calm")
    hands = Planting()
    queue(hands, tmp_path / "other", compiled=compiled)
    assert hands.jobs
    assert all(job.compile == compiled for job in hands.jobs.values())
    assert record(tmp_path / "other") == record(tmp_path / "calm")


class Killed(BaseException):
    """As a kill is, nothing may catch it."""


@pytest.mark.slow_except("0", "4")
@pytest.mark.parametrize("at", range(6))
def test_a_kill_loses_nothing(queue, tmp_path, at):
    """After a run was made, and before its record was written."""
    queue(Planting(), tmp_path / "calm")
    hands = Planting()

    def killed() -> object:
        if len(hands.started) > at:
            raise Killed
        return Planting.ended(hands)

    hands.ended = killed
    with pytest.raises(Killed):
        queue(hands, tmp_path / "killed")
    assert hands.stopped
    queue(Planting(), tmp_path / "killed")
    assert record(tmp_path / "killed") == record(tmp_path / "calm")


def test_two_queues_share_the_work(queue, tmp_path, monkeypatch):
    """Each run is made by one of them, and both records' runs are there at the end."""
    monkeypatch.setattr(working, "AGAIN", 0.05)
    monkeypatch.setattr(working, "NOTHING_TO_START", 0.05)
    held, made, whole = threading.Lock(), [], set()

    class Sharing(Planting):
        def make(self, name: str) -> bool:
            with held:
                if name in made:
                    return name in whole  # finished, or busy
                made.append(name)
            time.sleep(0.02)
            super().make(name)
            whole.add(name)
            return True

    queues = [threading.Thread(target=queue, args=(Sharing(), tmp_path / "shared")) for _ in range(2)]
    for thread in queues:
        thread.start()
    for thread in queues:
        thread.join(60)
    assert len(made) == len(set(made)) >= 6
    queue(Planting(), tmp_path / "calm")
    assert record(tmp_path / "shared") == record(tmp_path / "calm")


def test_a_run_that_another_process_holds_is_left_to_it_and_then_taken_up(queue, monkeypatch):
    monkeypatch.setattr(working, "AGAIN", 1.0)
    monkeypatch.setattr(working, "NOTHING_TO_START", 0.02)  # the others are made meanwhile, also on a busy machine

    class Busy(Planting):
        def make(self, name: str) -> bool:
            return (
                self.started.count(name) > 1 and super().make(name) if name == self.started[0] else super().make(name)
            )

    hands = Busy()
    found = queue(hands)
    assert hands.started.count(hands.started[0]) == 2
    assert hands.started[1] != hands.started[0]
    assert hands.started[0] in found.done
    assert not found.elsewhere


def test_a_run_that_fails_is_told_and_does_not_stop_the_others(queue):
    hands = Planting(failing=(0,))
    found = queue(hands)
    assert [why for _, why in found.failed.values()] == ["no room"]
    assert hands.started.count(hands.started[0]) == 1
    assert len(found.done) >= 5


def test_why_a_run_failed_stands_in_the_record_until_it_is_made(queue, question, tmp_path):
    queue(Planting(failing=(0,)))
    kept = known([tmp_path / "here" / "results"], "nano", {"small": question}).of(question)
    assert kept.failed == {"two": {1: "no room"}}
    assert 1 not in kept.runs["two"]
    again = Planting()
    queue(again)
    assert len(again.started) == 1
    queue(Planting(), tmp_path / "calm")
    assert record(tmp_path / "here") == record(tmp_path / "calm")


def test_a_failure_of_a_run_that_another_queue_made_meanwhile_is_none(queue, question, tmp_path):
    done = queue(Planting()).done
    before = record(tmp_path / "here")
    for planned in done.values():
        working.keep_failure(tmp_path / "here" / "results", "nano", question, planned, "no room")
    assert record(tmp_path / "here") == before


def test_a_queue_that_is_started_twice_says_so_and_one_after_another_says_nothing(queue, tmp_path):
    inner = []
    outer = queue(Planting(before=lambda name: inner or inner.append(queue(Planting(), tmp_path / "here"))))
    assert [line for line in inner[0].notes if "another queue is at work" in line]
    assert outer.notes == queue(Planting()).notes == []


@pytest.mark.parametrize(
    ("elsewhere", "told"),
    [
        ({"out": "others"}, "with another --out: what both make is made twice"),
        ({"results": "others"}, "for other --results"),
    ],
)
def test_a_second_queue_with_another_folder_says_which_is_shared(queue, tmp_path, elsewhere, told):
    more, inner = {name: tmp_path / folder for name, folder in elsewhere.items()}, []
    queue(Planting(before=lambda name: inner or inner.append(queue(Planting(), tmp_path / "here", **more))))
    assert [line for line in inner[0].notes if told in line]


def test_a_sign_that_cannot_be_held_is_bad_input(queue, tmp_path):
    (tmp_path / "here" / "results" / ".queue.lock").mkdir(parents=True)
    with pytest.raises(InputError, match=r"cannot lock .*queue\.lock"):
        queue(Planting())


def test_a_record_that_cannot_be_written_ends_the_queue_and_says_where_the_run_is(queue, tmp_path, monkeypatch):
    """No other could be written either; what was made is added by the same command."""

    def full(*_: object) -> None:
        raise InputError("cannot write it: No space left on device")

    hands = Planting()
    with monkeypatch.context() as patch:
        patch.setattr(working, "keep", full)
        with pytest.raises(InputError, match=r"No space left.*kept in .*runs, and the same command adds it"):
            queue(hands)
    assert hands.stopped
    assert len(hands.started) == 1
    queue(Planting())
    queue(Planting(), tmp_path / "calm")
    assert record(tmp_path / "here") == record(tmp_path / "calm")


def test_without_room_for_the_next_run_the_queue_ends_and_keeps_what_was_made(queue, question, tmp_path, monkeypatch):
    """Each further run would fail in its turn."""
    free = [10**9]
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=free[0]))
    hands = Planting(before=lambda name: free.__setitem__(0, 1000))
    with pytest.raises(InputError, match=r"no room in .*runs: \d+ MB are needed, 0 MB are free"):
        queue(hands)
    assert hands.stopped
    assert len(hands.started) == 1
    results = tmp_path / "here" / "results"
    found = known([results], "nano", {"small": question}).of(question)
    assert {label: made for label, made in seeds(found).items() if made} == {"two": [1]}
    shutil.rmtree(results)  # the run exists, so that it needs no room
    with pytest.raises(InputError, match="no room"):
        queue(Planting())
    assert known([results], "nano", {"small": question}).of(question).runs == found.runs


def test_the_run_that_a_full_disk_failed_is_told_before_the_queue_ends(queue, monkeypatch):
    free = [10**9]
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=free[0]))
    seen: list[list[str]] = []
    with pytest.raises(InputError, match="no room in"):
        queue(
            Planting(failing=(0,), before=lambda name: free.__setitem__(0, 0)),
            watch=lambda found: seen.append([why for _, why in found.failed.values()]),
        )
    assert seen[0] == []
    assert seen[-1] == ["no room"]


def test_one_run_that_cannot_be_read_stops_no_other(queue, tmp_path):
    """It fails alone; taken away, it is made again."""

    class Spoiling(Planting):
        def make(self, name):
            made = super().make(name)
            if len(self.started) == 1:
                (self.out / name / "observed.json").write_text("{")
                (self.out / name / "record.json").write_text("{")
            return made

    hands = Spoiling()
    found = queue(hands)
    assert list(found.failed) == hands.started[:1]
    assert len(found.done) == len(hands.started) - 1 > 0


def test_one_folder_for_records_and_runs_is_no_other_queue(queue, tmp_path):
    assert queue(Planting(), out=tmp_path / "one", results=tmp_path / "one").notes == []


def test_without_a_compiler_nothing_is_started(queue, monkeypatch):
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", (None, "no-such-compiler -O1"))
    hands = Planting()
    with pytest.raises(InputError, match="needs the C\\+\\+ compiler 'no-such-compiler'"):
        queue(hands, compiled=True)
    assert hands.started == []


def test_when_the_time_is_up_it_is_said_what_goes_on(queue):
    class Slow(Planting):
        def ended(self):
            time.sleep(0.02)
            yield from ()

    assert "goes on with it: small: two, seed 1" in queue(Slow(), hours=0.05 / 3600).notes[-1]


def test_records_of_another_version_of_the_code_are_told_of_once(queue, tmp_path):
    queue(Planting(), hours=0.001)
    path = tmp_path / "here" / "results" / "nano" / "small.json"
    found = json.loads(path.read_text())
    gone = [found["runs"]["one"].pop(seed) for seed in ("0", "2")]
    for seeds in found["runs"].values():
        for run in seeds.values():
            run["run"] = "tiny-of-before"
    path.write_text(json.dumps(found))
    again = queue(Planting())
    (line,) = again.notes
    assert "another version of the code or of the text (tiny-of-before, not " in line
    assert "small: one, seed 1" in line
    assert set(again.done) >= {each["run"] for each in gone}


def test_twenty_kills_in_a_row_leave_the_records_of_a_calm_queue(queue, tmp_path):
    """A few runs further each time, or none; some amid the work, some between a run and its record."""
    queue(Planting(), tmp_path / "calm")
    draw = random.Random(20)
    for _ in range(20):
        hands, ends = Planting(), draw.randrange(3)

        def killed(hands: Planting = hands, ends: int = ends) -> object:
            if len(hands.started) > ends:
                raise Killed
            return Planting.ended(hands)

        hands.ended = killed
        with suppress(Killed):
            queue(hands, tmp_path / "killed")
    queue(Planting(), tmp_path / "killed")
    assert record(tmp_path / "killed") == record(tmp_path / "calm")


def test_the_time_is_that_of_a_clock_that_never_jumps(queue, monkeypatch):
    jumps = iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: 1e9 * (-1) ** next(jumps))
    assert len(queue(Planting(), hours=1.0).done) >= 6


def test_when_the_time_is_up_nothing_new_is_started(queue, tmp_path):
    slow = Planting(before=lambda name: time.sleep(0.05))
    found = queue(slow, hours=0.04 / 3600)
    assert len(slow.started) == 1
    assert slow.stopped
    assert (found.running, found.done) == ({}, {name: found.done[name] for name in found.done})
    rest = Planting()
    queue(rest)
    assert len({*slow.started, *rest.started}) >= 6


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"hours": 0.0}, "hours = 0: more than 0"),
        ({"hours": float("nan")}, "hours = nan: more than 0"),
        ({"workers": 0}, "workers = 0"),
        ({"scale": "nanoo"}, "did you mean 'nano'"),
    ],
)
def test_bad_input_before_anything_is_written(queue, tmp_path, more, words):
    with pytest.raises(InputError, match=words):
        queue(Planting(), **more)
    assert not (tmp_path / "here").exists()


def test_a_damaged_record_is_kept_and_told_of(queue, tmp_path):
    path = tmp_path / "here" / "results" / "nano" / "small.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(InputError, match="cannot read"):
        queue(Planting())
    assert path.read_text() == "{"
