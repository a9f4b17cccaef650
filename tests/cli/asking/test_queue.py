"""`experiment queue`: the plan, the live view, what it says at the end."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from sinkscope.cli.asking import queue as command
from sinkscope.experiments import QUESTIONS
from sinkscope.experiments.queue import working
from sinkscope.experiments.queue.plan import Planned
from sinkscope.experiments.queue.working import Queue

PLANNED = Planned("emergence", "softmax", 3, "more seeds", 11, 1200.0, ("key", 3))


def test_the_plan_trains_nothing_and_says_what_it_would_take(sinkscope, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(working, "work_off", lambda **given: pytest.fail("nothing is to be run"))
    places = ("--results", str(tmp_path / "none"))
    whole = sinkscope("experiment", "queue", "--plan", "--json", *places).json
    first = sinkscope("experiment", "queue", "--plan", "--json", "--hours", "2", *places).json
    assert whole["runs"][: len(first["runs"])] == first["runs"]
    assert 2.0 <= first["hours"] < 3.0 < whole["hours"]
    assert all(run["experiment"] in QUESTIONS and run["estimated_seconds"] > 0 for run in first["runs"])
    table = sinkscope("experiment", "queue", "--plan", "--hours", "2", *places).out
    assert f"{first['runs'][0]['experiment']}: {first['runs'][0]['variation']}" in table
    assert f"{len(first['runs'])} runs, about {first['hours']:.1f} h" in table
    twice = sinkscope("experiment", "queue", "--plan", "--json", "--hours", "2", "--workers", "2", *places).json
    assert len(twice["runs"]) > len(first["runs"])
    assert not (tmp_path / "none").exists()


def test_lengths_that_nobody_knows_are_not_added_as_nothing(sinkscope, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    places = ("--results", str(tmp_path / "none"), "--scale", "mini")
    told = sinkscope("experiment", "queue", "--plan", "--json", *places).json
    assert told["hours"] is None
    assert told["of_unknown_length"] == sum(run["estimated_seconds"] is None for run in told["runs"]) > 0
    assert f"how long {told['of_unknown_length']} of them take is not known" in " ".join(
        sinkscope("experiment", "queue", "--plan", *places).out.split()
    )


def test_a_run_takes_its_own_time_however_many_workers_there_are(sinkscope, tmp_path):
    places = ("--results", str(tmp_path / "none"))
    told = sinkscope("experiment", "queue", "--plan", "--json", "--workers", "1000", *places).json
    assert told["hours"] >= max(run["estimated_seconds"] for run in told["runs"]) / 3600


@pytest.mark.parametrize(
    "words",
    [
        ("verdict", "--all", "--results", "{0}/none"),
        ("verdict", "inputs", "--results", "{0}/file"),
        ("list", "--results", "{0}/none"),
        ("queue", "--plan", "--results", "{0}/file"),
        ("run", "emergence", "--plan", "--results", "{0}/file"),
        ("run", "emergence", "--plan", "--workers", "0"),
        ("run", "emergence", "--plan", "--backend", "ry"),
    ],
)
def test_places_and_numbers_that_cannot_be_are_told_in_one_line(sinkscope, tmp_path, words):
    (tmp_path / "file").write_text("")
    answer = sinkscope("experiment", *(word.format(tmp_path) for word in words))
    assert answer.code == 2
    assert "Traceback" not in answer.err
    assert answer.err.strip()


def test_it_says_what_was_made_and_what_failed(sinkscope, tmp_path, monkeypatch):
    given = {}

    def work_off(**arguments):
        given.update(arguments)
        queue = Queue(done={"a": PLANNED}, failed={"b": (PLANNED, "no room")}, notes=["another queue is at work"])
        queue.elsewhere["c"] = PLANNED
        arguments["watch"](queue)
        arguments["watch"](queue)
        return queue

    monkeypatch.setattr(working, "work_off", work_off)
    places = ("--out", str(tmp_path / "runs"), "--results", str(tmp_path / "kept"))
    answer = sinkscope("experiment", "queue", "--hours", "1.5", "--workers", "2", *places)
    assert (given["hours"], given["workers"], given["out"]) == (1.5, 2, tmp_path / "runs")
    assert answer.code == 1
    assert "1 run made, 1 failed" in " ".join(answer.out.split())
    said = " ".join(answer.err.split())
    assert said.count("emergence: softmax, seed 3 failed: no room") == said.count("another queue is at work") == 1
    assert said.count("emergence: softmax, seed 3: another process is at it") == 1
    told = json.loads(sinkscope("experiment", "queue", "--json", *places).out)
    assert [run["seed"] for run in told["done"]] == [3]
    assert told["failed"][0]["reason"] == "no room"


def test_a_queue_that_is_interrupted_says_how_to_go_on(sinkscope, tmp_path, monkeypatch):
    def interrupted(**arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(working, "work_off", interrupted)
    answer = sinkscope("experiment", "queue", "--out", str(tmp_path / "runs"))
    assert answer.code == 130
    assert "the same command continues" in " ".join(answer.err.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--hours", "0"), "hours = 0: more than 0"),
        (("--workers", "0"), "workers = 0: at least 1"),
        (("--scale", "nanoo"), "did you mean 'nano'"),
        (("--scale", "nanoo", "--plan"), "did you mean 'nano'"),
        (("--hours", "-1", "--plan"), "hours = -1: more than 0"),
        (("--workers", "0", "--plan"), "workers = 0: at least 1"),
    ],
)
def test_bad_input(sinkscope, tmp_path, arguments, words):
    answer = sinkscope(
        "experiment", "queue", *arguments, "--out", str(tmp_path / "runs"), "--results", str(tmp_path / "kept")
    )
    assert (answer.code, list(tmp_path.iterdir())) == (2, [])
    assert words in answer.err
    assert len(answer.err.strip().splitlines()) == 1


def test_the_live_view_shows_what_is_made(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "log.jsonl").write_text(json.dumps({"step": 500, "validation_loss": 3.25}) + "\n")

    class Job:
        def model_dump(self, *, mode: str) -> dict:
            return {"steps": 1000}

    queue = Queue(running={"run": PLANNED}, jobs={"run": Job()}, missing=7, left=7200.0)
    screen = Console(file=io.StringIO(), width=120)
    screen.print(command._Rows(tmp_path).view(queue))
    shown = " ".join(screen.file.getvalue().split())
    assert "emergence: softmax, seed 3" in shown
    assert "50 % loss 3.25" in shown
    assert "0 done, 1 running, 0 failed, 0 elsewhere, 7 missing, 2 h 0 min left" in shown.replace(
        "120 min", "2 h 0 min"
    )
