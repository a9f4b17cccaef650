from __future__ import annotations

import json
from pathlib import Path

import pytest

from sinkscope.experiments import QUESTIONS, Findings, Observed
from sinkscope.experiments import findings as kept


def observed(seed: int, **metrics: float) -> Observed:
    return Observed("a-run", "finished", seed, metrics, (1, 2), {"validation_loss": (3.0, 2.0)}, 60.0)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Findings of the fixed-token question in which the sink follows in all seeds, and one seed is undecided."""
    runs = {
        "BOS at 0": {seed: observed(seed, sink_0=12.0, sink_2=0.0) for seed in range(3)},
        "token at 2": {seed: observed(seed, sink_0=0.5 + seed, sink_2=11.0) for seed in range(3)},
        "no fixed token": {seed: observed(seed, sink_0=0.0, sink_2=0.0) for seed in range(3)},
    }
    kept.write(tmp_path, Findings("fixed-token", "nano", 3, runs))
    return tmp_path


def test_the_list_names_every_question(sinkscope, results):
    answer = sinkscope("experiment", "list", "--json", "--results", str(results))
    listed = {entry["name"]: entry["known"] for entry in json.loads(answer.out)["experiments"]}
    assert list(listed) == list(QUESTIONS)
    assert listed["fixed-token"] == "2 supported, 1 inconclusive"
    assert all("not run" in known for name, known in listed.items() if name != "fixed-token")
    assert "fixed-token" in sinkscope("experiment", "list").out


def test_a_question_is_shown_with_what_decides_it(sinkscope):
    shown = json.loads(sinkscope("experiment", "show", "fixed-token", "--json").out)
    assert shown["rows"] == ["D3"]
    assert [variation["label"] for variation in shown["variations"]] == ["BOS at 0", "token at 2", "no fixed token"]
    assert "data.bos = none" in " ".join(sinkscope("experiment", "show", "fixed-token").out.split())


def test_verdicts_come_from_what_was_kept(sinkscope, results):
    answer = json.loads(sinkscope("experiment", "verdict", "fixed-token", "--json", "--results", str(results)).out)
    assert [verdict["outcome"] for verdict in answer["verdicts"]] == ["supported", "inconclusive", "supported"]
    assert answer["verdicts"][0]["residual"] == 11.0
    table = sinkscope("experiment", "verdict", "--all", "--results", str(results)).out
    assert "not run at this scale" in " ".join(table.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("show", "fixed-tokn"), "did you mean 'fixed-token'"),
        (("verdict",), "name one experiment, or pass --all"),
        (("verdict", "fixed-token", "--scale", "nanoo"), "did you mean 'nano'"),
        (("run", "fixed-token", "--backend", "lokal"), "did you mean 'local'"),
        (("show", "nothing.py"), "no file nothing.py"),
    ],
)
def test_bad_input(sinkscope, arguments, words):
    answer = sinkscope("experiment", *arguments)
    assert answer.code == 2
    assert words in answer.err
    assert len(answer.err.strip().splitlines()) == 1


def test_a_damaged_record_is_named(sinkscope, results):
    path = kept.path_of(results, "fixed-token", "nano")
    path.write_text(path.read_text()[:100])
    answer = sinkscope("experiment", "verdict", "--all", "--results", str(results))
    assert answer.code == 2
    assert str(path) in answer.err


def test_a_users_own_question(sinkscope, tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from sinkscope.experiments import Question, Variation, above, gap\n"
        "b = Variation('b', {'attention': 'sigmoid'})\n"
        "q = Question('mine', 'Is it so?', ('A14',), 'me', (Variation('a'), b),\n"
        "    (above(1.0, gap('sink_0', 'a', 'b'), 'lower', 'b is lower', 'me'),))\n"
    )
    assert json.loads(sinkscope("experiment", "show", str(mine), "--json").out)["asks"] == "Is it so?"
    mine.write_text("x = 1 / 0\n")
    answer = sinkscope("experiment", "show", str(mine))
    assert (answer.code, "ZeroDivisionError" in answer.err) == (2, True)
