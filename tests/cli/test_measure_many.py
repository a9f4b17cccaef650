"""`sinkscope measure` with several models or inputs: one table, finished results reused, models compared."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from sinkscope.measurement.models import running

FEW = ("--tokens", 16, "--samples", 4)
QUICK = (*FEW, "--observers", "few")  # of one model; several are measured by few in any case


@pytest.mark.slow
def test_a_table_and_a_page_of_several_models_and_inputs(sinkscope, model, text, tmp_path):
    answer = sinkscope(
        "measure", model, "nano", "--input", "natural", "--input", "repeated", "--text", text, *FEW, "--out", "found"
    )
    assert answer.code == 0
    assert "natural" in answer.out
    assert "repeated" in answer.out
    assert "found/survey.html" in answer.out
    names = {path.name for path in (tmp_path / "found").iterdir()}
    assert names >= {"survey.html", "survey.json", "table.csv", "table.md", "differences.csv", "results"}
    rows = list(csv.DictReader((tmp_path / "found" / "table.csv").read_text().splitlines()))
    assert [(row["input"], row["status"]) for row in rows] == [("natural", "measured"), ("repeated", "measured")] * 2
    assert rows[0]["first"] == rows[2]["first"] == "<bos> (id 0)"


@pytest.mark.slow
def test_one_of_several_models_has_the_json_that_it_has_alone(sinkscope, model, text, tmp_path):
    answer = sinkscope("measure", model, "nano", "--text", text, *FEW, "--json").json
    assert answer["folder"].startswith("sinkscope-measure/tiny-nano-natural-")
    first = answer["models"][0]
    alone = sinkscope("measure", model, "--text", text, *FEW, "--observers", "few", "--json").json
    assert (first["label"], first["status"]) == (model.name, "measured")
    assert {name: first[name] for name in ("sink_rate", "layers", "input", "tokens", "epsilon", "model")} == {
        name: alone[name] for name in ("sink_rate", "layers", "input", "tokens", "epsilon", "model")
    }


@pytest.mark.release
def test_models_and_saved_measurements_are_compared(sinkscope, model, text, tmp_path):
    read = ("--text", text, *FEW)
    assert sinkscope("measure", model, *read, "--observers", "few", "--out", "m").code == 0
    answer = sinkscope("measure", "m", model, *read, "--out", "c", "--json").json
    [difference] = answer["differences"]
    assert difference["paired"]
    assert difference["names"] == ["m", model.name]
    assert all(row["difference"] == 0 for row in difference["heads"])
    heads = pd.read_csv(tmp_path / "c" / "heads.csv")
    assert len(heads) == len(difference["heads"])
    assert set(heads["model"]) == {model.name}
    assert len(list((tmp_path / "c" / "results").iterdir())) == 1, "the saved one is read, not measured again"
    shutil.copytree(tmp_path / "m", tmp_path / "n")
    shutil.copytree(tmp_path / "m", tmp_path / "o")
    shown = sinkscope("measure", "m", "n/measurement.nc", "o", "--out", "c")
    assert shown.code == 0
    assert "less m" in shown.out
    assert set(pd.read_csv(tmp_path / "c" / "heads.csv")["model"]) == {"n", "o"}


@pytest.mark.slow
def test_one_saved_measurement_is_shown(sinkscope, model, text, tmp_path):
    assert sinkscope("measure", model, "--text", text, *QUICK, "--out", "m").code == 0
    before = sorted(tmp_path.rglob("*"))
    alone = sinkscope("measure", model, "--text", text, *QUICK, "--out", "m", "--json").json
    stored = sinkscope("measure", "m", "--json").json
    assert stored["sink_rate"] == alone["sink_rate"]
    assert "By layer" in sinkscope("measure", "m/measurement.nc").out
    assert sorted(tmp_path.rglob("*")) == before
    assert "--out goes with a model to measure" in sinkscope("measure", "m", "--out", "x").error
    assert "--tokens says how to measure" in sinkscope("measure", "m", "--tokens", 8).error


@pytest.mark.slow
def test_failures_are_reported_and_the_command_succeeds(sinkscope, model, text, tmp_path):
    shutil.copytree(model, tmp_path / "broken")
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"")
    answer = sinkscope("measure", "broken", model, "--text", text, *FEW)
    assert answer.code == 0
    assert "broken, natural input: failed, cannot load model" in answer.out
    assert "1 of 2 rows failed" in answer.out


@pytest.mark.slow
def test_a_file_and_options_that_override_its_fields(sinkscope, model, text, tmp_path):
    (tmp_path / "mine.yaml").write_text(
        f"models:\n  - {{model: {model}, label: tiny, pair: p}}\n  - {{model: nano, pair: p}}\n"
        "inputs: [random, repeated]\ntokens: 16\nsamples: 9\n"
    )
    answer = sinkscope("measure", "mine.yaml", "--samples", 4, "--json")
    assert answer.code == 0
    folder = Path(answer.json["folder"])
    assert folder.name.startswith("mine-")  # the hash of --samples 4
    rows = [(row["label"], row["samples"], row["tokens"], row["pair"]) for row in answer.json["models"]]
    assert rows == [("tiny", 4, 16, "p")] * 2 + [("nano", 4, 16, "p")] * 2
    assert "Pairs side by side" in (tmp_path / folder / "survey.html").read_text()


@pytest.mark.slow
def test_checkpoints_make_a_curve(sinkscope, model, tmp_path):
    for step in (5, 20):
        shutil.copytree(model, tmp_path / "runs" / "mine" / "checkpoints" / f"checkpoint-{step}")
    answer = sinkscope(
        "measure", "--checkpoints", "runs/mine", "--input", "random", *FEW, "--out", "curve", "--json"
    ).json
    assert [(row["curve"], row["step"]) for row in answer["models"]] == [("mine", 5), ("mine", 20)]
    assert "Emergence over training" in (tmp_path / "curve" / "survey.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "missing MODEL: name models, a YAML file of models, or --checkpoints RUN"),
        (("nano", "nano"), "MODEL nano is given twice"),
        (("nano", "--input", "natural", "--input", "natural"), "--input natural is given twice"),
        (("nano", "nano-recall", "--input", "naturl"), "unknown input 'naturl': did you mean 'natural'?"),
        (("nano", "nano-recall", "--epsilon", 2), "'--epsilon': 2 is not between 0 and 1"),
        (("nano", "nano-recall", "--device", "cpux"), "device 'cpux' cannot be used"),
        (
            ("nano", "nano-recall", "--device", "cpu", "--device-map", "auto"),
            "--device and --device-map exclude each other",
        ),
        (("absent.yaml",), "cannot read survey absent.yaml: No such file"),
        (("wrong.yaml",), "unknown survey field 'modells': did you mean 'models'?"),
        (("there.yaml", "--chat-template"), "--chat-template goes with models; in there.yaml it is a field"),
        (("there.yaml", "nano"), "there.yaml: a file of models goes alone"),
        (("--checkpoints", "runs/none"), "no checkpoints in 'runs/none'"),
        (("nano", "nano-recall", "--text", "none.txt"), "cannot read none.txt"),
        (("nano", "nano-recall", "--maps", "0.0"), "--maps goes with one model on one input"),
        (("nano", "--position", 1), "--position goes with several models"),
        (("nano", "nano-recall", "--position", 500, "--plan"), "samples have positions 0 to 63"),
        (("absent.nc", "nano"), "no such file: 'absent.nc'"),
    ],
)
def test_bad_input_is_one_line(sinkscope, arguments, message, tmp_path):
    (tmp_path / "there.yaml").write_text("models: [nano]\n")
    (tmp_path / "wrong.yaml").write_text("modells: [nano]\n")
    assert message in sinkscope("measure", *arguments).error
    assert not (tmp_path / "sinkscope-measure").exists()


@pytest.mark.slow
def test_an_interruption_exits_with_130_and_the_next_time_continues(sinkscope, model, tmp_path, monkeypatch):
    measure, calls = running.measure, []

    def interrupted(*arguments: object, **options: object) -> object:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measure(*arguments, **options)

    command = ("measure", model, "--input", "random", "--input", "repeated", *FEW, "--out", "s")
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
    answer = sinkscope("measure", evil.name, "absent<b>", "--input", "random", *FEW, "--out", "s")
    assert answer.code == 0
    assert "[red]" in answer.out
    page = (tmp_path / "s" / "survey.html").read_text()
    assert "<img src=x" not in page
    assert "absent<b>" not in page


@pytest.mark.parametrize("name", ["compare", "survey"])
def test_a_former_command_names_the_new_one_and_runs_it(sinkscope, model, name):
    answer = sinkscope(name, model, "./nowhere", *FEW)
    assert f"sinkscope {name} is now sinkscope measure" in answer.err
    assert "no such folder: './nowhere'" in answer.error
    assert f"│ {name} " not in sinkscope("--help").out
