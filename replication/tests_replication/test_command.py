"""`sinkscope experiment` on the questions and runs of the study."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sinkscope.experiments import QUESTIONS, Findings, Observed, write_rows
from sinkscope.experiments import findings as kept
from sinkscope.experiments.sweep.sweeping import Sweep
from sinkscope.training import Run


def observed(seed: int, **metrics: float) -> Observed:
    return Observed(f"run-{seed}-{metrics}", "finished", seed, metrics, (1, 2), {"validation_loss": (3.0, 2.0)}, 60.0)


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Findings of the fixed-token question in which the sink follows in all seeds, which are too few that agree.

    Without the runs that come with the study.
    """
    write_rows(tmp_path / "none.jsonl", {})
    for name, question in QUESTIONS.items():
        monkeypatch.setitem(QUESTIONS.added, name, replace(question, records=tmp_path / "none.jsonl"))
    runs = {
        "BOS at 0": {seed: observed(seed, sink_0=11.9 + seed / 10, sink_2=0.0) for seed in range(3)},
        "token at 2": {
            seed: observed(seed, sink_0=0.5 + seed, sink_2=10.9 + seed / 10, strongest_position=2.0)
            for seed in range(3)
        },
        "no fixed token": {seed: observed(seed, sink_0=0.0, sink_2=0.0) for seed in range(3)},
    }
    kept.write(tmp_path, Findings("fixed-token", "nano", 3, runs))
    return tmp_path


@pytest.mark.slow
def test_the_list_names_every_question(sinkscope, results):
    answer = sinkscope("experiment", "list", "--json", "--results", str(results))
    listed = {entry["name"]: entry["known"] for entry in json.loads(answer.out)["experiments"]}
    assert list(listed) == list(QUESTIONS)
    assert listed["fixed-token"] == "3 supported, 1 inconclusive, 4 not run at this scale"
    assert all("not run" in known for name, known in listed.items() if name != "fixed-token")
    assert "fixed-token" in sinkscope("experiment", "list").out


def test_a_question_is_shown_with_what_decides_it(sinkscope):
    shown = json.loads(sinkscope("experiment", "show", "fixed-token", "--json").out)
    assert shown["source"] == "Gu et al. 2025, Table 10"
    assert [variation["label"] for variation in shown["variations"]] == ["BOS at 0", "token at 2", "no fixed token"]
    claim = QUESTIONS["fixed-token"].assertions[0].claim
    said = {"name": claim.name, "statement": claim.statement, "asked": str(claim.rule), "source": claim.source}
    assert shown["claims"][0] == said
    assert "one seed of three" in shown["note"]
    assert "one seed of three" in " ".join(sinkscope("experiment", "show", "fixed-token").out.split())
    assert "data.bos = none" in " ".join(sinkscope("experiment", "show", "fixed-token").out.split())
    (gone,) = QUESTIONS["fixed-token"].withdrawn
    assert shown["withdrawn"] == [{"name": gone.name, "statement": gone.statement, "reason": gone.reason}]
    assert f"withdrawn: {gone.statement} (" in " ".join(sinkscope("experiment", "show", "fixed-token").out.split())


@pytest.mark.slow
def test_verdicts_come_from_what_was_kept(sinkscope, results):
    answer = json.loads(sinkscope("experiment", "verdict", "fixed-token", "--json", "--results", str(results)).out)
    fresh = "not run at this scale"  # by the mass, of seeds that nobody had seen; at the strongest position
    outcomes = [verdict["outcome"] for verdict in answer["verdicts"]]
    assert outcomes == [fresh, "inconclusive", "supported", fresh, "supported", fresh, fresh, "supported"]
    residuals = {verdict["claim"]["name"]: verdict["residual"] for verdict in answer["verdicts"]}
    assert residuals["strong"] == pytest.approx(11.0)
    assert [verdict["primary"] for verdict in answer["verdicts"]] == [True, *[False] * 7]
    assert [gone["experiment"] for gone in answer["withdrawn"]] == ["fixed-token"]
    assert answer["costs"] == {"fixed-token": {"runs": 9, "seconds": 540.0, "seconds_per_run": 60.0}}
    assert answer["cost"] == {"runs": 9, "seconds": 540.0}
    table = " ".join(sinkscope("experiment", "verdict", "--all", "--full", "--results", str(results)).out.split())
    assert "not run at this scale" in table
    assert "9 runs of 0.15 h" in table
    shared = json.loads((results / "nano" / "fixed-token.json").read_text()) | {"question": "fixed-positions"}
    (results / "nano" / "fixed-positions.json").write_text(json.dumps(shared))  # which reads the same runs
    again = " ".join(sinkscope("experiment", "verdict", "--all", "--full", "--results", str(results)).out.split())
    (results / "nano" / "fixed-positions.json").unlink()
    assert "; 9 runs of 0.15 h" in again
    for scale in ("mini", "paper"):
        other = sinkscope("experiment", "verdict", "--all", "--scale", scale, "--json", "--results", str(results))
        assert {verdict["outcome"] for verdict in other.json["verdicts"]} == {"not run at this scale"}


def test_all_of_them_are_a_few_lines_unless_asked_for_in_full(sinkscope):
    brief = sinkscope("experiment", "verdict", "--all").out.splitlines()
    assert len(brief) <= 10
    whole = sinkscope("experiment", "verdict", "--all", "--full").out.splitlines()
    assert brief == whole[: len(brief)]
    assert len(whole) > 500
    assert "--full goes with --all" in sinkscope("experiment", "verdict", "window", "--full").error


def test_claims_that_were_withdrawn_are_told(sinkscope, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    assert "claims that were withdrawn: " in sinkscope("experiment", "verdict", "--all").out
    assert "withdrawn: on 16 tokens" in sinkscope("experiment", "verdict", "window").out


def test_a_verdict_shows_effect_interval_seeds_and_cost(sinkscope, results, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    table = sinkscope("experiment", "verdict", "fixed-token", "--results", str(results)).out
    asked, _, head, *rows = (" ".join(line.split()) for line in table.splitlines())
    assert asked == "fixed-token: Does the sink follow a token that always stands at one position? (9 runs, 0.15 h)"
    assert head == "claim asked effect (95 % interval) seeds could show verdict"
    assert [row.startswith("primary: ") for row in rows[:3]] == [True, False, False]
    said = " ".join(rows)
    assert "12 (11.8 to 12.2) 3 and 3 3.17 supported" in said
    assert "not run at this scale (seeds 0, 1, 2 of 'token at 2' left out: seen before this was asked)" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("show", "fixed-tokn"), "did you mean 'fixed-token'"),
        (("verdict",), "name one experiment, or pass --all"),
        (("verdict", "fixed-token", "--scale", "nanoo"), "did you mean 'nano'"),
        (("run", "fixed-token", "--backend", "lokal"), "did you mean 'local'"),
        (("run", "fixed-token", "--backend", "rai"), "did you mean 'ray'"),
        (("verdict", "fixed-token", "--all"), "name one experiment, or pass --all"),
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
    answer = sinkscope("experiment", "verdict", "fixed-token", "--results", str(results))
    assert (answer.code, answer.out) == (2, "")
    assert str(path) in answer.err
    assert len(answer.err.strip().splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("command", ["list", "verdict --all --full", "list --json", "verdict --all --json"])
def test_a_damaged_record_hides_no_other_and_makes_the_exit_code_2(sinkscope, results, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    path = kept.path_of(results, "biases", "nano")
    path.write_text("{")
    answer = sinkscope("experiment", *command.split(), "--results", str(results))
    assert answer.code == 2
    assert f"not judged: cannot read {path}" in " ".join(answer.err.split())
    assert "fixed-token" in answer.out
    if "--json" in command:
        assert json.loads(answer.out)
    alone = sinkscope("experiment", "verdict", "fixed-token", "--results", str(results))
    assert (alone.code, "12 (11.8 to 12.2)" in " ".join(alone.out.split())) == (0, True)


MINE = (
    "from sinkscope.experiments import Question, Variation, above, gap\n"
    "b = Variation('b', {'attention': 'sigmoid'})\n"
    "q = Question('mine', 'Is it so?', 'me', (Variation('a'), b),\n"
    "    (above(1.0, gap('sink_0', 'a', 'b'), 'lower', 'b is lower', 'me'),))\n"
)


def test_a_users_own_question_is_judged(sinkscope, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    runs = {
        label: {seed: observed(seed, sink_0=value + seed) for seed in range(3)}
        for label, value in (("a", 9.0), ("b", 1.0))
    }
    kept.write(tmp_path / "kept", Findings("mine", "mini", 3, runs))
    command = ("experiment", "verdict", str(tmp_path / "mine.py"), "--results", str(tmp_path / "kept"), "--json")
    assert [verdict["outcome"] for verdict in sinkscope(*command, "--scale", "mini").json["verdicts"]] == ["supported"]
    (other,) = sinkscope(*command).json["verdicts"]
    assert (other["outcome"], other["reason"]) == ("not run at this scale", "no runs")


def swept(monkeypatch, out, results, watched):
    """`experiment run` with a backend that does not train: `watched` is handed the sweep's callback."""
    from sinkscope.experiments import running

    def backend(jobs, out, workers, watch):
        return watched(jobs, watch)

    monkeypatch.setitem(running.BACKENDS, "local", backend)
    monkeypatch.setattr(running, "observed", lambda run, kind: observed(0, sink_0=1.0))
    monkeypatch.setattr(running.RunStore, "run", lambda self, recipe: Run(self.path / f"{recipe.hash({})}"))
    return ("experiment", "run", "fixed-token", "--seeds", "1", "--out", str(out), "--results", str(results))


def test_a_run_says_where_its_record_is(sinkscope, monkeypatch, tmp_path):
    command = swept(monkeypatch, tmp_path / "runs", tmp_path / "kept", lambda jobs, watch: Sweep([], done=list(jobs)))
    path = tmp_path / "kept" / "nano" / "fixed-token.json"
    answer = sinkscope(*command)
    assert (answer.code, path.is_file()) == (0, True)
    assert f"record: {path}" in " ".join(answer.err.split())
    last = answer.out.strip().splitlines()[-1]
    assert (
        last == "1 inconclusive, 7 not run at this scale"
    )  # one seed is not three, and the other metrics were not measured
    assert sinkscope(*command, "--json").json["record"] == str(path)


def test_failed_runs_are_told_and_make_the_exit_code_1(sinkscope, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "200")

    def failing(jobs, watch):
        first, *others = jobs
        return Sweep([], done=others, failed={first: "no room"})

    answer = sinkscope(*swept(monkeypatch, tmp_path / "runs", tmp_path / "kept", failing))
    assert answer.code == 1
    assert "BOS at 0, seed 0 failed: no room" in answer.err
    assert "not run at this scale (no run of 'BOS at 0')" in " ".join(answer.out.split())


def test_nothing_to_judge_is_one_line(sinkscope, tmp_path):
    places = ("--out", str(tmp_path / "runs"), "--results", str(tmp_path / "kept"))
    answer = sinkscope("experiment", "run", "backcopy", "--backend", "none", "--seeds", "1", *places)
    assert answer.code == 2
    assert f"no runs of 'backcopy' in {tmp_path / 'runs'}" in " ".join(answer.err.split())
    assert not list((tmp_path / "kept").rglob("*.json"))


def test_an_interrupted_sweep_says_how_to_go_on(sinkscope, monkeypatch, tmp_path):
    def interrupted(jobs, watch):
        raise KeyboardInterrupt

    answer = sinkscope(*swept(monkeypatch, tmp_path / "runs", tmp_path / "kept", interrupted))
    assert answer.code == 130
    assert len([line for line in answer.err.splitlines() if "the same command continues" in line]) == 1
    assert not (tmp_path / "kept" / "nano").exists()


def test_a_users_own_question(sinkscope, tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(MINE)
    assert json.loads(sinkscope("experiment", "show", str(mine), "--json").out)["asks"] == "Is it so?"
    mine.write_text("x = 1 / 0\n")
    answer = sinkscope("experiment", "show", str(mine))
    assert (answer.code, "ZeroDivisionError" in answer.err) == (2, True)
