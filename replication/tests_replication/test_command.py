"""`sinkscope experiment` on the questions and runs of the study."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sinkscope.experiments import QUESTIONS
from sinkscope.experiments.sweep.sweeping import Sweep
from sinkscope.training import Run


@pytest.mark.slow
def test_the_list_names_every_question(sinkscope):
    listed = {entry["name"]: entry["known"] for entry in sinkscope("experiment", "list", "--json").json["experiments"]}
    assert list(listed) == list(QUESTIONS)
    assert listed["inputs"] == "2 seen, 1 not seen"
    assert listed["mixture"] == "1 open"


def test_a_question_is_shown_with_what_decides_it(sinkscope, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    shown = sinkscope("experiment", "show", "post-norm", "--json").json
    assert shown["source"] == "Gu et al. 2025, section 7"
    assert [each["decided_by"] for each in shown["variations"]] == [[*range(13)], [*range(3, 10)]]
    claim = QUESTIONS["post-norm"].assertions[0].claim
    described = {"name": claim.name, "statement": claim.statement, "asked": str(claim.rule), "source": claim.source}
    assert shown["claims"][0] == described
    text = " ".join(sinkscope("experiment", "show", "post-norm").out.split())
    assert "model.norm_placement = post" in text
    assert "7 (3 to 9)" in text
    assert "started without this file" in text


@pytest.mark.slow
def test_all_of_them_are_a_few_lines_unless_asked_for_in_full(sinkscope):
    brief = sinkscope("experiment", "verdict", "--all").out.splitlines()
    assert len(brief) <= 10
    whole = sinkscope("experiment", "verdict", "--all", "--full").out.splitlines()
    assert brief == whole[: len(brief)]
    assert len(whole) > 150


def test_a_verdict_shows_counts_interval_grade_and_registration(sinkscope, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    text = " ".join(sinkscope("experiment", "verdict", "normalisation").out.split())
    assert "claim asked found models grade" in text
    assert "13 of 13 against 1 of 6" in text
    assert "seen (losses differ by 0.41 nats)" in text
    assert "0.41 (0.374 to 0.446)" in text
    assert "unregistered: 25 of 25 runs started without this file" in text


def test_claims_about_sinks_warn_where_no_model_has_one(sinkscope):
    assert "no model has a sink" in " ".join(sinkscope("experiment", "verdict", "prefix-longer").err.split())
    assert "no model has a sink" not in sinkscope("experiment", "verdict", "normalisation").err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("show", "fixed-tokn"), "did you mean 'fixed-token'"),
        (("verdict", "fixed-token", "--scale", "nanoo"), "did you mean 'nano'"),
        (("run", "fixed-token", "--backend", "lokal"), "did you mean 'local'"),
        (("run", "fixed-token", "--seeds", "99"), "is decided by 13 seeds, not by 99"),
    ],
)
def test_bad_input(sinkscope, arguments, words):
    answer = sinkscope("experiment", *arguments)
    assert answer.code == 2
    assert words in answer.err
    assert len(answer.err.strip().splitlines()) == 1


def swept(monkeypatch, out, results, watched):
    """`experiment run` with a backend that does not train: `watched` is given the sweep's callback."""
    from sinkscope.experiments import Observed, running

    def backend(jobs, out, workers, watch):
        return watched(jobs, watch)

    observed = Observed("run-0", "finished", 0, {"sink_0": 1.0}, (1, 2), {"validation_loss": (3.0, 2.0)}, 60.0)
    monkeypatch.setitem(running.BACKENDS, "local", backend)
    monkeypatch.setattr(running, "observed", lambda run, kind: replace(observed, run=run.path.name))
    monkeypatch.setattr(running.RunStore, "run", lambda self, recipe: Run(self.path / f"{recipe.hash({})}"))
    return ("experiment", "run", "fixed-token", "--seeds", "1", "--out", str(out), "--results", str(results))


def test_a_run_says_where_its_record_is(sinkscope, monkeypatch, tmp_path):
    command = swept(monkeypatch, tmp_path / "runs", tmp_path / "kept", lambda jobs, watch: Sweep([], done=list(jobs)))
    path = tmp_path / "kept" / "nano" / "fixed-token.json"
    answer = sinkscope(*command)
    assert (answer.code, path.is_file()) == (0, True)
    assert f"record: {path}" in " ".join(answer.err.split())
    assert "22 of the runs that decide are not there" in " ".join(answer.err.split())
    assert answer.out.strip().splitlines()[-1] == "4 open"
    assert sinkscope(*command, "--json").json["record"] == str(path)


def test_failed_runs_are_named_and_make_the_exit_code_1(sinkscope, monkeypatch, tmp_path):
    def failing(jobs, watch):
        first, *others = jobs
        return Sweep([], done=others, failed={first: "no room"})

    answer = sinkscope(*swept(monkeypatch, tmp_path / "runs", tmp_path / "kept", failing))
    assert answer.code == 1
    assert "BOS at 0, seed 0 failed: no room" in answer.err


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
