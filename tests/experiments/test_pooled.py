"""What is known is known whatever question it was made for; what cannot be told apart is reported."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from sinkscope.errors import InputError
from sinkscope.experiments import QUESTIONS, SHIPPED, Findings, Observed, known
from sinkscope.experiments import findings as kept
from sinkscope.experiments.jobs import LabTraining

NAMES = ("emergence", "inputs", "biases")  # questions that share their softmax
LAYOUT, OLDER = LabTraining.layout, min(LabTraining.older)


def run(seed: int, value: float = 1.0, name: str = "softmax", layout: int = LAYOUT) -> Observed:
    return Observed(f"{name}-{seed}", "finished", seed, {"sink_0": value}, layout=layout)


def written(folder: Path, question: str, *runs: Observed, label: str = "softmax") -> None:
    kept.write(folder, Findings(question, "nano", 1, {label: {one.seed: one for one in runs}}))


def test_a_run_counts_for_every_question_that_asks_for_it(tmp_path):
    written(tmp_path, "emergence", run(0), run(3))
    found = known([tmp_path], "nano")
    for name in ("inputs", "biases"):
        assert found.of(QUESTIONS[name]).runs["softmax"] == {0: run(0), 3: run(3)}
        assert found.of(QUESTIONS[name]).seeds == 4
    assert found.of(QUESTIONS["learning-rate"]).runs == {"lr / 8": {}, "lr / 4": {}, "lr": {0: run(0), 3: run(3)}}
    assert found.of(QUESTIONS["backcopy"]) is None
    assert found.notes == ()


def test_one_run_has_one_set_of_numbers_and_an_earlier_folder_s_counts(tmp_path):
    written(tmp_path / "a", "emergence", run(0, 1.0))
    written(tmp_path / "b", "emergence", run(0, 2.0), run(1, 2.0))
    written(tmp_path / "b", "biases", run(0, 3.0))
    found = known([tmp_path / "a", tmp_path / "b"], "nano")
    assert {name: found.of(QUESTIONS[name]).runs["softmax"][0]["sink_0"] for name in NAMES} == dict.fromkeys(NAMES, 1.0)
    assert found.of(QUESTIONS["emergence"]).runs["softmax"][1]["sink_0"] == 2.0
    twice, counts = "softmax, seed 0: the run softmax-0 stands", "too, with different numbers; those there count"
    assert found.notes == (
        f"emergence, {twice} in an earlier folder {counts}",
        f"biases, {twice} in the record of 'emergence' {counts}",
    )


MADE = {"early": "2025-05-01T10:00:00+00:00", "late": "2025-05-02T10:00:00+00:00", "before dates": ""}


@pytest.mark.parametrize(
    ("emergence", "biases", "counts"),
    [
        ("early", "late", 1.0),
        ("late", "early", 2.0),
        ("late", "before dates", 2.0),
        ("before dates", "late", 1.0),
        ("before dates", "before dates", 1.0),
    ],
)
@pytest.mark.parametrize("layout", [LAYOUT, OLDER])
def test_of_a_run_that_was_made_twice_the_first_counts_everywhere(tmp_path, emergence, biases, counts, layout):
    """By when it began, whichever has the nicer number or the newer layout."""
    for question, when, loss, own in (("emergence", emergence, 1.0, LAYOUT), ("biases", biases, 2.0, layout)):
        made = replace(run(0, loss, layout=own), started=MADE[when], curves={"loss": (3.0, loss)})
        written(tmp_path, question, made)
    found = known([tmp_path], "nano")
    assert {found.of(QUESTIONS[name]).runs["softmax"][0]["sink_0"] for name in NAMES} == {counts}
    where = "there" if counts == 1.0 else "here"
    told = f"stands in the record of 'emergence' too, with different numbers; those {where} count"
    assert found.notes == (f"biases, softmax, seed 0: the run softmax-0 {told}",)


@pytest.mark.parametrize("wrong", ["1970-01-01T00:00:07+00:00", "2999-01-01T00:00:00+00:00", "yesterday"])
def test_a_date_that_no_clock_can_have_said_is_told_and_comes_after_all_others(tmp_path, wrong):
    odd = replace(run(0, 1.0), started=wrong, curves={"loss": (3.0, 1.0)})
    written(tmp_path, "emergence", replace(run(0, 2.0), started=MADE["late"], curves={"loss": (3.0, 2.0)}))
    written(tmp_path, "biases", odd)
    found = known([tmp_path], "nano")
    assert odd.began == ""
    assert found.of(QUESTIONS["biases"]).runs["softmax"][0]["sink_0"] == 2.0
    assert f"biases, softmax, seed 0: it says that it began {wrong}: its clock was wrong" in found.notes[0]


def test_a_run_that_was_read_again_elsewhere_counts_in_its_newer_layout(tmp_path):
    """Another machine rounds otherwise: what was logged tells that it is the same training."""
    curves = {"loss": (3.0, math.nan, 2.0)}
    written(tmp_path, "emergence", replace(run(0, 1.0, layout=OLDER), curves=curves))
    written(tmp_path, "biases", replace(run(0, 1.0000001), curves=curves))
    found = known([tmp_path], "nano")
    assert {found.of(QUESTIONS[name]).runs["softmax"][0].layout for name in NAMES} == {LAYOUT}
    assert found.notes == ()


def test_a_run_of_another_version_of_the_code_is_reported_and_not_mixed(tmp_path):
    written(tmp_path, "emergence", run(0))
    written(tmp_path, "biases", run(0, name="old"))
    (note,) = known([tmp_path], "nano").notes
    assert "another version of the code or of the text (old-0, not softmax-0)" in note


def test_a_run_that_was_read_in_another_layout_is_left_to_its_question(tmp_path):
    written(tmp_path, "emergence", run(0, layout=OLDER - 1))
    found = known([tmp_path], "nano")
    assert found.of(QUESTIONS["biases"]) is None
    assert found.of(QUESTIONS["emergence"]).runs["softmax"] == {0: run(0, layout=OLDER - 1)}
    assert f"read in layout 3, not {LAYOUT}" in found.notes[0]


def test_a_run_that_was_read_before_there_were_masses_counts_but_for_these(tmp_path):
    written(tmp_path, "emergence", run(0, layout=OLDER))
    found = known([tmp_path], "nano")
    assert found.of(QUESTIONS["biases"]).runs["softmax"] == {0: run(0, layout=OLDER)}
    assert found.notes == ()


@pytest.mark.parametrize("newer", ["emergence", "biases"])
def test_of_one_run_in_two_layouts_the_newer_counts(tmp_path, newer):
    both = {LAYOUT: newer, OLDER: "biases" if newer == "emergence" else "emergence"}
    for layout, question in both.items():
        written(tmp_path, question, run(0, layout=layout))
    found = known([tmp_path], "nano")
    assert {found.of(QUESTIONS[name]).runs["softmax"][0].layout for name in NAMES} == {LAYOUT}
    assert found.notes == ()
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder, layout in zip(folders, (OLDER, LAYOUT), strict=True):
        written(folder, "biases", run(0, layout=layout))
    assert known(folders, "nano").of(QUESTIONS["biases"]).runs["softmax"][0].layout == LAYOUT


def test_a_damaged_record_stops_its_own_question_alone(tmp_path):
    written(tmp_path, "emergence", run(0))
    kept.path_of(tmp_path, "biases", "nano").write_text("{")
    found = known([tmp_path], "nano")
    assert found.of(QUESTIONS["inputs"]) is not None
    with pytest.raises(InputError, match="cannot read"):
        found.of(QUESTIONS["biases"])


def test_what_failed_and_was_made_elsewhere_did_not_fail(tmp_path):
    written(tmp_path, "emergence", run(0))
    failed = Findings("biases", "nano", 2, {}, {"softmax": {0: "no room", 1: "no room"}})
    kept.write(tmp_path, failed)
    assert known([tmp_path], "nano").of(QUESTIONS["biases"]).failed == {"softmax": {1: "no room"}}


def test_our_records_come_with_the_package():
    found = known([SHIPPED], "nano")
    assert len(found.runs) > 90
    assert not found.damaged
    assert found.notes == ()
    assert set(found.records) <= set(QUESTIONS)
    sources = {name for name, record in found.records.items() if record.runs}
    assert sources == set(found.records)


def test_what_is_set_aside_is_a_repetition_of_a_run_that_counts_and_the_readme_says_why():
    aside, counted = known([SHIPPED / "set_aside"], "nano"), known([SHIPPED], "nano")
    told = (SHIPPED / "README.md").read_text(encoding="utf-8")
    assert aside.runs
    for key, repeated in aside.runs.items():
        first = counted.runs[key]
        assert repeated.run == first.run
        assert repeated.curves != first.curves
        assert f"`{repeated.run}`" in told
    retired, note = known([SHIPPED, SHIPPED / "set_aside"], "nano").notes
    assert "too, with different numbers; those there count" in note
    assert retired == "window: 'window of 16' is none of its variations: the runs that stand there are not judged"


def test_runs_of_a_variation_that_is_gone_are_reported(tmp_path):
    written(tmp_path, "emergence", run(0), label="softmaxx")
    (note,) = known([tmp_path], "nano").notes
    assert "'softmaxx' is none of its variations" in note


def test_a_run_does_not_stand_for_another_seed(tmp_path):
    """Else one run counts twice, and a verdict of two seeds is one of three."""
    path = kept.write(tmp_path, Findings("emergence", "nano", 1, {"softmax": {0: run(0), 1: run(0)}}))
    assert "'softmax', seed 1: this is the run of seed 0, softmax-0" in known([tmp_path], "nano").damaged["emergence"]
    assert path.exists()


def test_a_user_s_own_question_is_pooled_too(tmp_path):
    written(tmp_path, "emergence", run(0))
    mine = replace(QUESTIONS["inputs"], name="mine")
    assert known([tmp_path], "nano", own=[mine]).of(mine).runs["softmax"] == {0: run(0)}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda r: r | {"from the future": 1}, "a newer sinkscope made it, whose field 'from the future'"),
        (lambda r: r | {"started": None}, "started = None"),
        (lambda r: r | {"seconds": "x"}, "seconds = 'x'"),
        (lambda r: r | {"seconds": -1.0}, "below 0"),
        (lambda r: r | {"seconds": math.nan}, "without end"),
        (lambda r: r | {"run": []}, r"run = \[\]"),
        (lambda r: r | {"layout": "2"}, "layout = '2'"),
        (lambda r: r | {"seed": -1}, "below 0"),
        (lambda r: r | {"seed": True}, "seed = True"),
        (lambda r: r | {"metrics": {"loss": 10**400}}, "OverflowError"),
    ],
)
def test_a_run_of_another_form_damages_its_record_alone_in_one_line(tmp_path, change, told):
    written(tmp_path, "emergence", run(0))
    written(tmp_path, "biases", run(1))
    path = kept.path_of(tmp_path, "emergence", "nano")
    record = json.loads(path.read_text())
    record["runs"]["softmax"]["0"] = change(record["runs"]["softmax"]["0"])
    path.write_text(json.dumps(record))
    found = known([tmp_path], "nano")
    (line,) = found.damaged.values()
    assert re.search(told, line)
    assert "\n" not in line
    assert ("move it away" in line) == ("newer" not in line), "what a newer version made is not to be thrown away"
    assert list(found.of(QUESTIONS["inputs"]).runs["softmax"]) == [1]


def test_what_is_no_record_at_all_is_told_in_one_line(tmp_path):
    written(tmp_path, "emergence", run(0))
    path = kept.path_of(tmp_path, "emergence", "nano")
    kept.path_of(tmp_path, "biases", "nano").mkdir()
    kept.path_of(tmp_path, "inputs", "nano").write_text("[" * 100_000)
    kept.path_of(tmp_path, "domains", "nano").write_text(path.read_text())
    assert set(known([tmp_path], "nano").damaged) == {"biases", "inputs", "domains"}
    assert "it holds 'emergence'" in known([tmp_path], "nano").damaged["domains"]


@pytest.mark.parametrize("file", ["", "nano"])
def test_a_file_where_a_folder_should_be_is_bad_input(tmp_path, file):
    place = tmp_path / "results"
    (place / file).parent.mkdir(exist_ok=True)
    (place / file).write_text("")
    with pytest.raises(InputError, match="is no folder"):
        known([place], "nano")
