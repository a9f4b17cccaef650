"""`sinkscope experiment` on a question of a user's own, which comes with a file of rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sinkscope.experiments import Findings, Observed, find, keys, write_rows
from sinkscope.experiments import findings as kept
from tests.registering import toy_installed

MINE = """
from pathlib import Path
from sinkscope.experiments import Question, Variation, above, gap
b = Variation("b", {"attention": "sigmoid"})
q = Question("mine", "Is it so?", "me", (Variation("a"), b),
    (above(1.0, gap("sink_0", "a", "b"), "lower", "b is lower", "me"),),
    records=Path(__file__).parent / "runs.jsonl")
"""


def observed(label: str, seed: int, rate: float) -> Observed:
    metrics = {"sink_0": rate}
    return Observed(f"run-{label}-{seed}", "finished", seed, metrics, (1, 2), {"validation_loss": (3.0, 2.0)}, 60.0)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A file with a question, and rows of two seeds of each of its variations."""
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    by_label = keys(find(str(path)), "nano")
    rates = {"a": 9.0, "b": 1.0}
    runs = {
        (key, seed): observed(label, seed, rates[label] + seed / 10)
        for label, key in by_label.items()
        for seed in range(2)
    }
    write_rows(tmp_path / "runs.jsonl", runs)
    return path


def test_rows_and_the_own_record_are_judged_together(sinkscope, mine, tmp_path):
    command = ("experiment", "verdict", str(mine), "--json")
    (verdict,) = sinkscope(*command).json["verdicts"]
    assert verdict["outcome"] == "inconclusive"  # two seeds are not three
    own = {label: {2: observed(label, 2, rate)} for label, rate in (("a", 9.1), ("b", 1.1))}
    kept.write(tmp_path / "kept", Findings("mine", "nano", 3, own))
    answer = sinkscope(*command, "--results", str(tmp_path / "kept")).json
    assert (answer["verdicts"][0]["outcome"], answer["cost"]["runs"]) == ("supported", 6)
    shown = sinkscope("experiment", "show", str(mine), "--json", "--results", str(tmp_path / "kept")).json
    assert {one["label"]: one["seeds"] for one in shown["variations"]} == {"a": [0, 1, 2], "b": [0, 1, 2]}


def test_the_plan_takes_rows_for_runs_that_are_known(sinkscope, mine, tmp_path):
    plan = ("experiment", "run", str(mine), "--plan", "--json", "--results", str(tmp_path / "kept"))
    found = sinkscope(*plan).json
    assert (found["runs"], found["reused"]) == (6, 0)
    assert found["hours"] == pytest.approx(6 * 60 / 3600)
    again = sinkscope(*plan, "--reuse").json
    assert (again["runs"], again["reused"]) == (2, 4)


def test_damaged_rows_are_one_line(sinkscope, mine, tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_text(path.read_text()[:-20])
    for command in ("verdict", "show"):
        answer = sinkscope("experiment", command, str(mine))
        assert (answer.code, answer.out) == (2, "")
        assert f"{path}, line 4: this is no row of a run" in " ".join(answer.err.split())
    path.unlink()
    assert "cannot read" in sinkscope("experiment", "verdict", str(mine)).error


def test_questions_that_packages_bring_are_listed(sinkscope):
    with toy_installed():
        listed = sinkscope("experiment", "list", "--json").json["experiments"]
        assert "toy-powers" in {each["name"] for each in listed}
        assert "did you mean 'toy-powers'" in sinkscope("experiment", "show", "toy-power").error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("verdict",), "name one experiment, or pass --all"),
        (("verdict", "mine.py", "--all"), "name one experiment, or pass --all"),
        (("verdict", "mine.py", "--full"), "--full goes with --all"),
        (("show", "nothing.py"), "no file nothing.py"),
    ],
)
def test_bad_input(sinkscope, arguments, words):
    answer = sinkscope("experiment", *arguments)
    assert answer.code == 2
    assert words in answer.err
    assert len(answer.err.strip().splitlines()) == 1


def test_a_folder_of_results_that_is_not_there_is_named(sinkscope, mine, tmp_path):
    answer = sinkscope("experiment", "verdict", str(mine), "--results", str(tmp_path / "nowhere"))
    assert answer.error.startswith(f"error: no folder {tmp_path / 'nowhere'}")


def test_a_damaged_record_is_named(sinkscope, mine, tmp_path):
    path = kept.write(tmp_path / "kept", Findings("mine", "nano", 1, {"a": {0: observed("a", 0, 9.0)}}))
    path.write_text(path.read_text()[:100])
    answer = sinkscope("experiment", "verdict", str(mine), "--results", str(tmp_path / "kept"))
    assert (answer.code, answer.out) == (2, "")
    assert str(path) in answer.err


def test_a_file_that_raises_is_bad_input(sinkscope, mine):
    assert json.loads(sinkscope("experiment", "show", str(mine), "--json").out)["asks"] == "Is it so?"
    mine.write_text("x = 1 / 0\n")
    answer = sinkscope("experiment", "show", str(mine))
    assert (answer.code, "ZeroDivisionError" in answer.err) == (2, True)
