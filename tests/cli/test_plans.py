"""`--plan`: what long work would take, said beforehand; nothing is written."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest

from sinkscope.cli.app import _command
from sinkscope.cli.showing import watching
from sinkscope.live import pulse

LONG = ("measure", "cache", "quantize", "intervene", "calibrate", "train", "demo")
READ = ("--samples", 4, "--tokens", 16)


@pytest.mark.parametrize("command", LONG)
def test_every_command_with_long_work_has_a_plan(command: str):
    assert "--plan" in [option for param in _command().commands[command].params for option in param.opts]


@pytest.mark.parametrize(
    "arguments",
    [
        ("intervene", "MODEL", *READ),
        ("intervene", "MODEL", "--by", "layer", "--what", "hide-sink", *READ),
        ("quantize", "MODEL", "--scheme", "w8a8-tensor", "--hazards", *READ),
        ("cache", "MODEL", "--samples", 2, "--tokens", 16),
        ("calibrate", "MODEL", "--method", "act", *READ),
    ],
    ids=lambda arguments: " ".join(map(str, arguments[:3])),
)
def test_a_plan_says_seconds_and_memory_and_writes_nothing(sinkscope, model, text, tmp_path: Path, arguments):
    given = [model if each == "MODEL" else each for each in arguments]
    found = sinkscope(*given, "--text", text, "--plan", "--json").json
    seconds = found["seconds"]
    assert min(seconds.values() if isinstance(seconds, dict) else [seconds]) > 0
    assert found["memory"] > 2**20
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_several_models_are_planned_one_by_one(sinkscope, model, tmp_path: Path):
    found = sinkscope("measure", model, "nano", "--plan", "--json").json["plans"]
    assert [plan["model"] for plan in found] == [str(model), "nano"]
    assert list(tmp_path.iterdir()) == []


def test_more_controls_take_longer(sinkscope, model, text):
    few, many = (
        sinkscope("intervene", model, "--text", text, *READ, "--controls", count, "--plan", "--json").json["readings"]
        for count in (1, 5)
    )
    assert few < many


@pytest.mark.slow
def test_a_pipe_gets_lines_before_the_first_reading_and_after_it(capsys, monkeypatch):
    monkeypatch.setattr("sinkscope.live.pulse", partial(pulse, every=0.02))
    with watching() as watch:
        for done in (1, 2):
            time.sleep(0.2)
            watch(done, 4, "nearest so far: a")
        time.sleep(0.2)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("preparing, for ")
    assert "25 % (1 of 4 readings); nearest so far: a" in lines
    assert lines[-1].startswith("50 %, about ")
    assert lines[-1].endswith("left (2 of 4 readings); nearest so far: a")


@pytest.mark.slow
def test_preparations_and_what_was_there_say_nothing_of_the_time_left(capsys, monkeypatch):
    monkeypatch.setattr("sinkscope.live.pulse", partial(pulse, every=0.02))
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    with watching() as watch:
        clock[0] += 1000  # of preparing
        watch(60, 100, "")  # of an interrupted run
        clock[0] += 10
        watch(70, 100, "")
        time.sleep(0.1)
    assert capsys.readouterr().err.splitlines()[-1] == "70 %, about 30 s left (70 of 100 readings)"


@pytest.mark.slow
def test_the_time_left_of_a_stage_is_at_its_own_pace(capsys, monkeypatch):
    """As in a report card, whose sections come one after the other."""
    monkeypatch.setattr("sinkscope.live.pulse", partial(pulse, every=0.02))
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    with watching() as watch:
        for total, second in ((2, 1000), (3, 10), (3, 40)):
            watch(0, total, "")
            clock[0] += second
            watch(1, total, "")
            time.sleep(0.1)
    lines = capsys.readouterr().err.splitlines()
    assert "33 %, about 20 s left (1 of 3 readings)" in lines
    assert lines[-1] == "33 %, about 80 s left (1 of 3 readings)"
