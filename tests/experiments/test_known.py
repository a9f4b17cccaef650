"""What is known of a question: its own record, and the rows that come with it, found by key and seed."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from sinkscope.errors import InputError
from sinkscope.experiments import Findings, Observed, expected, known, write_rows
from sinkscope.experiments import findings as kept
from sinkscope.experiments.jobs import LabTraining
from sinkscope.experiments.rows import keys

LAYOUT = LabTraining.layout


def run(seed: int, value: float = 1.0, name: str = "softmax", layout: int = LAYOUT) -> Observed:
    return Observed(f"{name}-{seed}", "finished", seed, {"sink_0": value}, layout=layout)


def written(folder: Path, question: str, *runs: Observed, label: str = "one") -> Path:
    return kept.write_findings(folder, Findings(question, "nano", 1, {label: {one.seed: one for one in runs}}))


@pytest.fixture
def asked(small, tmp_path):
    """A question with rows of two seeds of its first variation, and of a run that is none of its own."""
    question = small()
    key = keys(question, "nano")["one"]
    write_rows(tmp_path / "runs.jsonl", {(key, 0): run(0), (key, 3): run(3), ("other", 1): run(1)})
    return replace(question, records=tmp_path / "runs.jsonl")


def test_rows_count_for_every_question_that_asks_for_the_run(asked, small, tmp_path):
    other = replace(small("wider", {"attention": "k_bias"}), records=asked.records)
    for question in (asked, other):
        found = known(question, results=tmp_path)
        assert found.runs == {"one": {0: run(0), 3: run(3)}}
        assert found.seeds == 4
    assert known(small(), results=tmp_path) is None
    assert known(replace(asked, not_at={"mini": "no"}), "mini", tmp_path) is None


def test_a_seed_that_was_made_again_does_not_replace_the_row(asked, tmp_path):
    written(tmp_path, "small", run(0, 2.0), run(1, 2.0), run(3))  # seed 3 was taken from the rows
    found = known(asked, results=tmp_path)
    assert {seed: one["sink_0"] for seed, one in found.runs["one"].items()} == {0: 1.0, 1: 2.0, 3: 1.0}
    assert found.runs["two"] == {}
    assert found.notes == ("made again, while the runs that come with the question stay: seed 0 of 'one'",)


def on_text(seed: int, text: str) -> Observed:
    return replace(run(seed), text=text)


def test_runs_on_another_text_than_the_rows_are_left_out_and_named(asked, corpus, tmp_path):
    """Seeds of another population, which would be pooled with these."""
    texts = tmp_path / "runs.texts.json"
    texts.write_text(json.dumps({corpus: {"text_sha256": "a" * 64}}))
    written(tmp_path, "small", on_text(0, "b" * 64), on_text(1, "a" * 64), on_text(2, "b" * 64))
    found = known(asked, results=tmp_path)
    assert set(found.runs["one"]) == {0, 1, 3}, "rows that do not say their text have that of the file"
    assert found.runs["one"][0] == run(0)
    (note,) = found.notes
    assert note == "left out, trained on another text than the one with sha256 aaaaaaaaaaaa: seeds 0, 2 of 'one'"
    written(tmp_path, "small", on_text(1, "b" * 64), label="two")
    assert known(asked, results=tmp_path).runs["two"] == {}, "an arm of its own has no other text either"
    texts.write_text("[]")
    with pytest.raises(InputError, match=f"cannot read {texts}"):
        known(asked, results=tmp_path)


def test_without_rows_the_text_of_most_runs_stays(small, tmp_path):
    written(tmp_path, "small", on_text(0, "b"), on_text(1, "a"), on_text(2, "a"), run(3))
    found = known(small(), results=tmp_path)
    assert set(found.runs["one"]) == {1, 2, 3}
    assert "seed 0 of 'one'" in found.notes[0]


def test_what_failed_and_stands_in_rows_did_not_fail(asked, tmp_path):
    kept.write_findings(tmp_path, Findings("small", "nano", 2, {}, {"one": {0: "no room", 1: "no room"}}))
    assert known(asked, results=tmp_path).failed == {"one": {1: "no room"}}


def test_hosts_of_rows_are_counted(asked, tmp_path):
    key = keys(asked, "nano")["one"]
    rows = {(key, seed): replace(run(seed), host={"threads": 1} if seed else {}) for seed in range(3)}
    write_rows(asked.records, rows)
    assert known(asked, results=tmp_path).provenance == {"hosts": [{"threads": 1, "runs": 2}]}


def test_a_damaged_record_is_an_error_that_names_it(asked, tmp_path):
    path = kept.path_of(tmp_path, "small", "nano")
    path.parent.mkdir()
    path.write_text("{")
    with pytest.raises(InputError, match=f"cannot read {path}"):
        known(asked, results=tmp_path)


def test_a_run_does_not_stand_for_another_seed(small, tmp_path):
    """Else one run counts twice, and a verdict of two seeds is one of three."""
    kept.write_findings(tmp_path, Findings("small", "nano", 1, {"one": {0: run(0), 1: run(0)}}))
    with pytest.raises(InputError, match="'one', seed 1: this is the run of seed 0, softmax-0"):
        known(small(), results=tmp_path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda r: r | {"from the future": 1}, "a newer sinkscope made it, whose field 'from the future'"),
        (lambda r: r | {"started": None}, "started = None"),
        (lambda r: r | {"seconds": "x"}, "seconds = 'x'"),
        (lambda r: r | {"seconds": -1.0}, "below 0"),
        (lambda r: r | {"seconds": math.nan}, "infinite"),
        (lambda r: r | {"run": []}, r"run = \[\]"),
        (lambda r: r | {"layout": "2"}, "layout = '2'"),
        (lambda r: r | {"seed": -1}, "below 0"),
        (lambda r: r | {"seed": True}, "seed = True"),
        (lambda r: r | {"metrics": {"loss": 10**400}}, "OverflowError"),
    ],
)
def test_a_run_of_another_form_damages_its_record_in_one_line(small, tmp_path, change, told):
    path = written(tmp_path, "small", run(0))
    record = json.loads(path.read_text())
    record["runs"]["one"]["0"] = change(record["runs"]["one"]["0"])
    path.write_text(json.dumps(record))
    with pytest.raises(InputError) as raised:
        known(small(), results=tmp_path)
    line = str(raised.value)
    assert re.search(told, line)
    assert "\n" not in line
    assert ("move it away" in line) == ("newer" not in line), "what a newer version made is not to be thrown away"


def test_what_is_no_record_at_all_is_told_in_one_line(small, tmp_path):
    path = written(tmp_path, "small", run(0))
    kept.path_of(tmp_path, "folder", "nano").mkdir()
    kept.path_of(tmp_path, "deep", "nano").write_text("[" * 100_000)
    kept.path_of(tmp_path, "copied", "nano").write_text(path.read_text())
    for name, words in (("folder", "cannot read"), ("deep", "cannot read"), ("copied", "it holds 'small'")):
        with pytest.raises(InputError, match=words):
            known(small(name), results=tmp_path)


@pytest.mark.parametrize("file", ["", "nano"])
def test_a_file_where_a_folder_should_be_is_bad_input(small, tmp_path, file):
    place = tmp_path / "results"
    (place / file).parent.mkdir(exist_ok=True)
    (place / file).write_text("")
    with pytest.raises(InputError, match="is not a folder"):
        known(small(), results=place)


def test_an_unknown_scale_is_bad_input(small, tmp_path):
    with pytest.raises(InputError, match="did you mean 'nano'"):
        known(small(), "nanoo", tmp_path)


def test_what_runs_took_on_a_gpu_says_nothing_of_processors(small):
    """Records may hold both; the hours that are asked for are those of cores."""
    question = small()
    gpu = {"device": "some GPU"}
    fast = {seed: replace(run(seed), seconds=1.0, host=gpu) for seed in range(5)}
    slow = replace(run(5), seconds=60.0, host={"device": "cpu"})
    both = Findings(question, "nano", 6, {"one": fast | {5: slow}, "two": {}})
    assert expected(question, "nano", both, seeds=(6,)).seconds == 120.0, "one and two"
    alone = Findings(question, "nano", 5, {"one": fast, "two": {}})
    assert expected(question, "nano", alone, seeds=(6,)).seconds == 2.0
