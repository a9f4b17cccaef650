from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest

from sinkscope.measurement.models import running

FEW = ("--tokens", 16, "--samples", 4)


@pytest.mark.slow
def test_a_table_and_a_page_of_several_models_and_inputs(sinkscope, model, text, tmp_path):
    answer = sinkscope(
        "survey", model, "nano", "--input", "natural", "--input", "repeated", "--text", text, *FEW, "--out", "found"
    )
    assert answer.code == 0
    assert "natural" in answer.out
    assert "repeated" in answer.out
    assert "found/survey.html" in answer.out
    names = {path.name for path in (tmp_path / "found").iterdir()}
    assert names >= {"survey.html", "survey.json", "table.csv", "table.md", "results"}
    rows = list(csv.DictReader((tmp_path / "found" / "table.csv").read_text().splitlines()))
    assert [(row["input"], row["status"]) for row in rows] == [("natural", "measured"), ("repeated", "measured")] * 2
    assert rows[0]["first"] == rows[2]["first"] == "<bos> (id 0)"


@pytest.mark.slow
def test_json_is_alone_on_stdout(sinkscope, model, text):
    answer = sinkscope("survey", model, "--text", text, *FEW, "--json")
    assert answer.code == 0
    [row] = answer.json["rows"]
    assert row["label"] == model.name
    assert answer.json["survey"].startswith("sinkscope-survey/tiny-")
    one = sinkscope("measure", model, "--text", text, *FEW, "--json").json
    assert row["sink_rate"] == pytest.approx(one["sink_rate"]["0"])


@pytest.mark.slow
def test_failures_are_told_and_the_command_succeeds(sinkscope, model, text, tmp_path):
    shutil.copytree(model, tmp_path / "broken")
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"")
    answer = sinkscope("survey", "broken", model, "--text", text, *FEW)
    assert answer.code == 0
    assert "broken, natural input: failed, cannot load model" in answer.out
    assert "1 of 2 rows failed" in answer.out


@pytest.mark.slow
def test_a_file_and_options_that_take_the_place_of_its_fields(sinkscope, model, text, tmp_path):
    (tmp_path / "mine.yaml").write_text(
        f"models:\n  - {{model: {model}, label: tiny, pair: p}}\n  - {{model: nano, pair: p}}\n"
        "inputs: [random, repeated]\ntokens: 16\nsamples: 9\n"
    )
    answer = sinkscope("survey", "mine.yaml", "--samples", 4, "--json")
    assert answer.code == 0
    folder = Path(answer.json["survey"])
    assert folder.name.startswith("mine-")  # the hash of --samples 4
    assert [(row["label"], row["samples"], row["tokens"], row["pair"]) for row in answer.json["rows"]] == [
        ("tiny", 4, 16, "p"),
        ("tiny", 4, 16, "p"),
        ("nano", 4, 16, "p"),
        ("nano", 4, 16, "p"),
    ]
    page = (tmp_path / folder / "survey.html").read_text()
    assert "Pairs side by side" in page


@pytest.mark.slow
def test_checkpoints_make_a_curve(sinkscope, model, tmp_path):
    for step in (5, 20):
        shutil.copytree(model, tmp_path / "runs" / "mine" / "checkpoints" / f"checkpoint-{step}")
    answer = sinkscope(
        "survey", "--checkpoints", "runs/mine", "--input", "random", *FEW, "--out", "curve", "--json"
    ).json
    assert [(row["curve"], row["step"]) for row in answer["rows"]] == [("mine", 5), ("mine", 20)]
    assert "Emergence over training" in (tmp_path / "curve" / "survey.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to survey: name models, a survey's YAML file, or --checkpoints RUN"),
        (("nano", "nano"), "two models of the survey are called 'nano'"),
        (("nano", "--input", "naturl"), "unknown survey field 'inputs.0' 'naturl': did you mean 'natural'?"),
        (("nano", "--epsilon", 2), "survey field 'epsilon' = 2.0"),
        (("nano", "--device", "cpux"), "device 'cpux' cannot be used"),
        (("nano", "--device", "cpu", "--device-map", "auto"), "'device' and 'device_map' exclude each other"),
        (("absent.yaml",), "cannot read survey absent.yaml: No such file"),
        (("there.yaml", "--chat-template"), "--chat-template goes with models; in there.yaml it is a field"),
        (("--checkpoints", "runs/none"), "no checkpoints in 'runs/none'"),
        (("nano", "--text", "none.txt"), "cannot read none.txt"),
    ],
)
def test_a_survey_without_meaning_is_bad_input(sinkscope, arguments, message, tmp_path):
    (tmp_path / "there.yaml").write_text("models: [nano]\n")
    assert message in sinkscope("survey", *arguments).error
    assert not (tmp_path / "sinkscope-survey" / "models" / "survey.json").exists()


@pytest.mark.slow
def test_an_interruption_exits_with_130_and_the_next_time_goes_on(sinkscope, model, tmp_path, monkeypatch):
    measure, calls = running.measure, []

    def interrupted(*given: object, **options: object) -> object:
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measure(*given, **options)

    command = ("survey", model, "--input", "random", "--input", "repeated", *FEW, "--out", "s")
    monkeypatch.setattr(running, "measure", interrupted)
    answer = sinkscope(*command)
    assert answer.code == 130
    assert answer.err.splitlines()[-1] == "error: interrupted"
    assert len(json.loads((tmp_path / "s" / "survey.json").read_text())["rows"]) == 1
    assert sinkscope(*command).code == 0
    assert len(calls) == 3


@pytest.mark.slow
def test_names_are_text_in_table_and_page(sinkscope, model, tmp_path):
    evil = tmp_path / "[red]<img src=x onerror=alert(1)>"
    shutil.copytree(model, evil)
    answer = sinkscope("survey", evil.name, "absent<b>", "--input", "random", *FEW, "--out", "s")
    assert answer.code == 0
    assert "[red]" in answer.out
    page = (tmp_path / "s" / "survey.html").read_text()
    assert "<img src=x" not in page
    assert "absent<b>" not in page
