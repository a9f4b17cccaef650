"""What the paths given to `sinkscope report` hold, by kind; what is none of them is named."""

from __future__ import annotations

import json

import pytest
import torch

from sinkscope.checks import check
from sinkscope.errors import InputError
from sinkscope.experiments import find, findings, keys, write_rows
from sinkscope.files import write_json
from sinkscope.measurement import Survey, SurveyRow, measure
from sinkscope.report.stored import read_results, records_in
from sinkscope.statistics.claims import CaseValue, Claim, EachWithin
from tests.report.experiments.conftest import found, run

OWN = """
from pathlib import Path
from sinkscope.experiments import Question, Variation, above, level
claim = above(1.0, level("sink_0", "a"), "a sink", "there is one", "mine", fewest=2)
mine = Question("mine", "Mine?", "mine", (Variation("a"),), (claim,), seeds=3)
"""


@pytest.fixture
def records(tmp_path):
    """`results/experiments` with one record at scale nano."""
    softmax, sigmoid = {0: run("softmax", 0, 9.0)}, {0: run("sigmoid", 0, 1.0)}
    findings.write_findings(tmp_path / "results", found(softmax=softmax, sigmoid=sigmoid))
    return tmp_path / "results"


def test_a_folder_of_records_has_what_was_run(records):
    for folder in (records, records / "nano"):
        (entry,) = read_results([folder]).entries
        assert (entry.name, entry.scale, len(entry.runs)) == ("normalisation", "nano", 2)
    assert records_in(records) == [records / "nano" / "normalisation.json"]


def test_one_record_is_that_experiment(records):
    (entry,) = read_results([records / "nano" / "normalisation.json"]).entries
    assert (entry.name, entry.scale, len(entry.runs)) == ("normalisation", "nano", 2)


def test_a_question_of_ones_own_is_judged_with_its_file(records, tmp_path):
    record = findings.Findings("mine", "nano", 1, {"a": {0: run("a", 0, 5.0)}})
    path = findings.write_findings(records, record)
    assert read_results([path]).entries[0].claims == ()
    (tmp_path / "mine.py").write_text(OWN)
    (entry,) = read_results([tmp_path / "mine.py", path]).entries
    assert entry.claims[0].verdict.value == 5.0


def test_the_rows_of_a_question_are_judged_with_its_file(tmp_path):
    rows = tmp_path / "runs.jsonl"
    (tmp_path / "mine.py").write_text(OWN.replace("(claim,), ", f"(claim,), records=Path({str(rows)!r}), "))
    asked = find(str(tmp_path / "mine.py"))
    write_rows(rows, {(keys(asked, "nano")["a"], 0): run("a", 0, 5.0), ("other", 0): run("b", 0, 1.0)})
    (entry,) = read_results([tmp_path / "mine.py", rows]).entries
    assert entry.claims[0].verdict.value == 5.0
    with pytest.raises(InputError, match="no installed question reads these rows"):
        read_results([rows])


def test_a_survey_and_the_verdicts_of_theory(tmp_path):
    row = SurveyRow(model="x", label="x", input="natural", status="failed", reason="no")
    write_json(tmp_path / "survey" / "survey.json", Survey((row,), tmp_path, 0.3).to_json())
    verdict = Claim("zero", "zero is zero", "X", EachWithin(0)).judge([CaseValue("here", 0.0)])
    write_json(tmp_path / "theory" / "verdicts.json", [verdict.to_dict()])
    stored = read_results([tmp_path / "survey", tmp_path / "theory", tmp_path / "theory" / "verdicts.json"])
    assert stored.surveys["survey"].rows == (row,)
    assert [list(verdicts) for verdicts in stored.claims.values()] == [[verdict], [verdict]]
    assert list(stored.claims) == ["theory", "theory (2)"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("broken.json", "{"),
        ("other.json", "[1, 2]"),
        ("other.json", '{"a": 1}'),
        ("nano/broken.json", '{"question": "x", "scale": "nano", "seeds": 1, "runs": 5, "failed": {}}'),
        ("survey.json", "{"),
        ("card.json", "{"),
        ("card.json", '{"a": 1}'),
        ("verdicts.json", '{"a": 1}'),
        ("verdicts.json", '[{"claim": 3}]'),
        ("mine.py", "nothing ="),
        ("text.txt", "words"),
    ],
)
def test_what_is_damaged_or_something_else_is_named(tmp_path, name, content):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    with pytest.raises(InputError, match=path.stem) as raised:
        read_results([path])
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["nano/broken.json", "survey.json", "verdicts.json", "card.json"])
def test_what_is_damaged_in_a_folder_is_named(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("{")
    with pytest.raises(InputError, match=path.name):
        read_results([tmp_path])


@pytest.mark.slow
def test_the_folder_of_a_measurement_and_of_a_report_card_are_results(tmp_path, tiny_llama):
    measurement = measure(tiny_llama, torch.arange(48).reshape(2, 24))
    for name in ("one", "two"):
        measurement.save(tmp_path / name / "measurement.nc")
    write_json(tmp_path / "card" / "card.json", check("nano", count=4, tokens=32, only=["sink"]).to_json())
    stored = read_results([tmp_path / "one", tmp_path / "two", tmp_path / "card"])
    assert list(stored.measurements) == ["one", "two"]
    assert stored.pages["card"].title == "Report card of nano"
    assert read_results([tmp_path / "card" / "card.json"]).pages["card"].sections[0].title == "Sink"


def test_json_of_other_numbers_is_no_record(tmp_path):
    (tmp_path / "list.json").write_text(json.dumps({"runs": {"a": {"x": {}}}}))
    with pytest.raises(InputError, match=r"list\.json: this is not a record of an experiment"):
        read_results([tmp_path / "list.json"])
