"""`sinkscope experiment` on a question of a user's own, which comes with a file of rows."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sinkscope.experiments import Findings, Observed, find, keys, write_rows
from sinkscope.experiments import findings as kept
from sinkscope.experiments.jobs import LabTraining
from tests.registering import toy_installed

MINE = """
from pathlib import Path
from sinkscope.experiments import Has, Question, Variation, above, gap, more_models
b = Variation("b", {"attention": "sigmoid"})
q = Question("mine", "Is it so?", "me", (Variation("a"), b),
    (more_models("a", "b", Has("sink_0", 3.0), "fewer", "fewer models of b have a sink", "me"),
     above(1.0, gap("sink_mass", "a", "b"), "lower", "b is lower", "me")),
    records=Path(__file__).parent / "runs.jsonl", seeds=5, note="All of one text.")
"""

REGISTERED = """
from sinkscope.experiments import Has, Question, Variation, most_models
mine = Question("mine", "?", "me", (Variation("a"),),
    (most_models("a", Has("sink_0", 3.0), "most", "most models have a sink", "me"),), seeds=7)
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


def test_a_question_s_own_reservation_stands_under_its_verdict(sinkscope, mine):
    assert "All of one text." in sinkscope("experiment", "verdict", str(mine)).out


def test_rows_and_the_own_record_are_judged_together(sinkscope, mine, tmp_path):
    command = ("experiment", "verdict", str(mine), "--json")
    fewer, lower = sinkscope(*command).json["verdicts"]
    assert (fewer["grade"], fewer["reason"], fewer["k"]) == ("open", "4 of 10 runs", [2, 0])
    own = {label: {s: observed(label, s, rate) for s in (2, 3, 4)} for label, rate in (("a", 9.1), ("b", 1.1))}
    kept.write_findings(tmp_path / "kept", Findings("mine", "nano", 5, own))
    answer = sinkscope(*command, "--results", str(tmp_path / "kept")).json
    fewer, lower = answer["verdicts"]
    assert (fewer["grade"], lower["grade"], answer["cost"]["runs"]) == ("seen", "open", 10)
    assert lower["reason"].startswith("left out")  # no run has a mass
    shown = sinkscope("experiment", "show", str(mine), "--json", "--results", str(tmp_path / "kept")).json
    assert {one["label"]: one["seeds"] for one in shown["variations"]} == {"a": [*range(5)], "b": [*range(5)]}
    assert [one["decided_by"] for one in shown["variations"]] == [[*range(5)]] * 2


def test_the_plan_takes_rows_for_runs_that_are_known(sinkscope, mine, tmp_path):
    plan = ("experiment", "run", str(mine), "--plan", "--json", "--results", str(tmp_path / "kept"))
    found = sinkscope(*plan).json
    assert (found["runs"], found["reused"]) == (10, 0)
    assert found["hours"] == pytest.approx(10 * 60 / 3600)
    assert found["seeds"].startswith("the question's seeds can never decide 1 of 2 claims ('lower')")
    again = sinkscope(*plan, "--reuse", "--seeds", "3").json
    assert (again["runs"], again["reused"]) == (2, 4)
    assert "1 of 2 claims stay open until all of the question's seeds are run" in again["seeds"]
    assert "is decided by 5 seeds, not by 6" in sinkscope(*plan, "--seeds", "6").error


def test_damaged_rows_are_one_line(sinkscope, mine, tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_text(path.read_text()[:-20])
    for command in ("verdict", "show"):
        answer = sinkscope("experiment", command, str(mine))
        assert (answer.code, answer.out) == (2, "")
        assert f"{path}, line 4: this is not a row of a run" in " ".join(answer.err.split())
    path.unlink()
    assert "cannot read" in sinkscope("experiment", "verdict", str(mine)).error


def test_without_questions_there_is_nothing_to_judge(sinkscope):
    assert "no claims; 0 runs" in sinkscope("experiment", "verdict", "--all").out


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
    path = kept.write_findings(tmp_path / "kept", Findings("mine", "nano", 1, {"a": {0: observed("a", 0, 9.0)}}))
    path.write_text(path.read_text()[:100])
    answer = sinkscope("experiment", "verdict", str(mine), "--results", str(tmp_path / "kept"))
    assert (answer.code, answer.out) == (2, "")
    assert str(path) in answer.err


def test_a_file_that_raises_is_bad_input(sinkscope, mine):
    assert json.loads(sinkscope("experiment", "show", str(mine), "--json").out)["asks"] == "Is it so?"
    for text, words in (("x = 1 / 0", "ZeroDivisionError"), ("raise SystemExit(3)", "SystemExit: 3"), ("", "holds no")):
        mine.write_text(f"{text}\n")
        answer = sinkscope("experiment", "show", str(mine))
        assert (answer.code, words in answer.err) == (2, True)


def test_a_plan_says_where_the_question_was_edited_after_its_runs(sinkscope, tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(REGISTERED)
    results = keep_registered(mine, "0" * 64)
    command = ("experiment", "run", str(mine), "--plan", "--results", str(results))
    assert "changed after 7 of 7 runs" in " ".join(sinkscope(*command).out.split())
    assert sinkscope(*command, "--json").json["registered"]["edited"]


def test_show_refuses_what_run_refuses(sinkscope, mine):
    mine.write_text(MINE.replace('"sigmoid"', '"sigmoidal"'))
    shown, ran = (sinkscope("experiment", *words) for words in (("show", str(mine)), ("run", str(mine), "--plan")))
    assert (shown.code, shown.error) == (2, ran.error)
    assert "sigmoidal" in shown.error


def test_a_text_that_is_not_there_is_refused_alike(sinkscope, mine, tmp_path):
    mine.write_text(MINE.replace("seeds=5", 'seeds=5, shared={"data.corpus": "text:nowhere/*.txt"}'))
    out = ("--out", str(tmp_path / "runs"), "--results", str(tmp_path / "kept"))
    answers = [
        sinkscope("experiment", *words)
        for words in (("show", str(mine)), ("run", str(mine), "--plan"), ("run", str(mine), *out))
    ]
    assert [answer.code for answer in answers] == [2, 2, 2]
    assert all("nowhere" in answer.err for answer in answers)
    assert answers[0].err == answers[1].err


@pytest.mark.parametrize(
    ("wrong", "right", "words"),
    [
        ('"sigmoid"', '"sigmoidal"', "sigmoidal"),
        ('more_models("a", "b"', 'more_models("a", "c"', "unknown variation of experiment 'mine' 'c'"),
        ('{"attention": "sigmoid"}', '{"eval_every": 3}', "variations 'a' and 'b' are one recipe"),
        ('{"attention": "sigmoid"}', '{"seed": 3}', "seeds are named by seeds=, not by a change"),
        ('gap("sink_mass", "a", "b")', 'lambda runs: runs["a"].losss', "its function raises AttributeError"),
        ('gap("sink_mass", "a", "b")', "lambda runs: 2.0", "claim 'lower': it reads no run"),
    ],
)
def test_a_wrong_file_without_runs_is_not_judged(sinkscope, mine, wrong, right, words):
    mine.write_text(MINE.replace('    records=Path(__file__).parent / "runs.jsonl",', "   ").replace(wrong, right))
    for command in (("verdict", str(mine)), ("show", str(mine)), ("run", str(mine), "--plan")):
        answer = sinkscope("experiment", *command)
        assert (answer.code, answer.out) == (2, "")
        assert words in answer.error


def test_a_run_under_two_labels_is_no_two_models(sinkscope, tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(MINE.replace('    records=Path(__file__).parent / "runs.jsonl",', "   "))
    runs = {seed: observed("a", seed, 9.0) for seed in range(5)}
    kept.write_findings(tmp_path / "kept", Findings("mine", "nano", 5, {"a": runs, "b": runs}))
    answer = sinkscope("experiment", "verdict", str(mine), "--results", str(tmp_path / "kept"))
    assert (answer.code, answer.out) == (2, "")
    assert "variations 'a' and 'b' have one run, 'run-a-0'" in answer.error


def keep_registered(mine: Path, sha256: str) -> Path:
    """Seven runs whose models have a sink, made with a file of this hash."""
    note = {"mine": {"sha256": sha256, "file": "mine.py"}}
    runs = {s: Observed(f"a-{s}", "finished", s, {"sink_0": 9.0, "strongest": 9.0}, registered=note) for s in range(7)}
    kept.write_findings(mine.parent / "kept", Findings("mine", "nano", 7, {"a": runs}))
    return mine.parent / "kept"


def test_a_margin_loosened_after_the_runs_is_told(sinkscope, tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(REGISTERED)
    results = keep_registered(mine, hashlib.sha256(mine.read_bytes()).hexdigest())
    command = ("experiment", "verdict", str(mine), "--results", str(results))
    (verdict,) = sinkscope(*command, "--json").json["verdicts"]
    assert verdict["grade"] == "confirmed"
    assert "registered before its 7 runs" in " ".join(sinkscope(*command).out.split())
    mine.write_text(REGISTERED.replace("3.0", "2.0"))
    answer = sinkscope(*command, "--json").json
    assert answer["verdicts"][0]["grade"] == "seen"
    assert "changed after 7 of 7 runs" in answer["registered"]["mine"]["words"]
    edited = sinkscope(*command)
    assert edited.code == 2
    assert edited.err.splitlines()[-1] == "'mine' was edited after its runs, so no claim of it is confirmed"


def test_a_verdict_on_runs_of_one_s_own_loads_nothing_slow(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(REGISTERED)
    runs = {"a": {seed: observed("a", seed, 9.0) for seed in range(7)}}
    kept.write_findings(tmp_path / "kept", Findings("mine", "nano", 7, runs))
    script = (
        "import sys; from sinkscope.cli import main; "
        f"main(['experiment', 'verdict', {str(path)!r}, '--results', {str(tmp_path / 'kept')!r}]); "
        "print(*({'torch', 'pandas', 'scipy.stats', 'matplotlib', 'plotly'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    *shown, loaded = done.stdout.splitlines()
    assert "1 seen" in "\n".join(shown)
    assert loaded == ""


def test_runs_of_seeds_that_a_question_does_not_name_cost_it_nothing(sinkscope, mine, tmp_path):
    runs = {"a": {seed: observed("a", seed, 9.0) for seed in range(5, 20)}}
    kept.write_findings(tmp_path / "kept", Findings("mine", "nano", 7, runs))
    command = ("experiment", "verdict", str(mine), "--results", str(tmp_path / "kept"))
    assert sinkscope(*command, "--json").json["costs"]["mine"]["runs"] == 4  # seeds 0 and 1 of both variations
    assert "(4 runs," in " ".join(sinkscope(*command).out.split())


def test_judging_registers_no_run(sinkscope, tmp_path, monkeypatch):
    """A claim is fixed when a run starts, and none does; nor are texts encoded where there can be no run."""
    monkeypatch.setattr(LabTraining, "fingerprint", lambda self: pytest.fail("encodes the corpus"))
    (tmp_path / "mine.py").write_text(REGISTERED)
    answer = sinkscope("experiment", "run", "mine.py", "--backend", "none", "--out", "nowhere", "--results", "kept")
    assert "no runs of 'mine' in nowhere" in answer.error
    assert not (tmp_path / "nowhere").exists()


def test_a_scale_that_does_not_exist_is_refused(sinkscope):
    for command in (("list",), ("verdict", "--all")):
        answer = sinkscope("experiment", *command, "--scale", "huge")
        assert "unknown scale 'huge'" in answer.error
        assert answer.out == ""


def test_runs_that_are_not_judged_are_told(sinkscope, tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(REGISTERED)
    (tmp_path / "kept").mkdir()
    command = ("experiment", "verdict", str(mine), "--results", str(tmp_path / "kept"))
    assert f"sinkscope experiment run {mine} --backend none" in " ".join(sinkscope(*command).err.split())
    results = keep_registered(mine, hashlib.sha256(mine.read_bytes()).hexdigest())
    assert "gone" not in sinkscope(*command).err
    empty = json.loads((results / "nano" / "mine.json").read_text())
    empty["runs"] |= {"later": {}}  # a renamed variation's label, under which no run is
    (results / "nano" / "mine.json").write_text(json.dumps(empty))
    assert sinkscope(*command[:-1], str(results)).code == 0
    mine.write_text(REGISTERED.replace('"a"', '"b"'))
    answer = sinkscope(*command[:-1], str(results))
    assert answer.code == 2
    assert "open (0 of 7 runs)" in " ".join(answer.out.split())
    assert "not judged: 7 runs of 'a', a variation that is gone" in " ".join(answer.err.split())
    assert sinkscope(*command[:-1], str(results), "--json").code == 2


def test_runs_that_do_not_replace_those_of_a_question_are_told(sinkscope, mine, tmp_path):
    again = {"a": {0: observed("again", 0, 1.0), 4: replace(observed("a", 4, 9.0), text="b")}}
    kept.write_findings(tmp_path / "kept", Findings("mine", "nano", 5, again))
    (tmp_path / "runs.texts.json").write_text(json.dumps({"python": {"text_sha256": "a"}}))
    answer = sinkscope("experiment", "verdict", str(mine), "--results", str(tmp_path / "kept"))
    told = " ".join(answer.err.split())
    assert answer.code == 0
    assert "mine: made again, while the runs that come with the question stay: seed 0 of 'a'" in told
    assert "mine: left out, trained on another text than the one with sha256 a: seed 4 of 'a'" in told
    assert "2 of 2 against 0 of 2" in " ".join(answer.out.split())
