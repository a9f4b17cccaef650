"""One door to pages: each kind of result has one page, whoever writes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import sinkscope as ss
from sinkscope.errors import InputError
from sinkscope.experiments import findings
from sinkscope.measurement import Measurement
from sinkscope.report.page import render
from sinkscope.report.stored import Stored, page_of, read_results
from sinkscope.report.trial_page import trial_page
from sinkscope.report.writing import compose, page_of_result, results_page
from sinkscope.trials import OnePass, Trial, run
from tests.report.experiments.conftest import EVIL, found, question
from tests.report.experiments.conftest import run as experiment_run
from tests.trials.planted import beaten, ids, llama, noisy


@pytest.fixture(scope="module")
def trial() -> Trial:
    arms = [noisy("all", 0.5, baseline=True), beaten(0.2, 0.5)]
    return run(llama(), ids(8), arms, reading=OnePass(), controls=1, about={"kind": "schemes", "scheme": "int<8>"})


@pytest.mark.slow
def test_a_trial_has_one_page_whoever_writes_it(trial: Trial, tmp_path: Path) -> None:
    trial.save(tmp_path / "trial.nc")
    stored = page_of(tmp_path / "trial.nc")
    assert stored is not None
    written = ss.write_report(trial, tmp_path / "page.html").read_text(encoding="utf-8")
    assert written == render(trial_page(trial)) == render(stored)
    assert page_of_result(str(tmp_path)).title == "int<8> on LlamaForCausalLM"
    assert "int<8>" not in written
    titled = ss.write_report(trial, tmp_path / "page.html", title="Mine").read_text(encoding="utf-8")
    assert "<h1>Mine</h1>" in titled


def test_runs_and_paths(runs: tuple, measurement: Measurement, tmp_path: Path) -> None:
    folder = store_run(tmp_path / "runs" / "nano-1", runs[0].rows)
    measurement.save(tmp_path / "m.nc")
    (section,) = page_of_result(ss.training.Run(folder)).sections
    assert section.title == "The sink over training"
    titles = [section.title for section in page_of_result([folder, tmp_path / "m.nc"], 0.2).sections]
    assert titles[0] == "The sink over training"
    assert any("per layer and head" in title for title in titles)


def test_what_has_no_page_is_refused(trial: Trial, tmp_path: Path) -> None:
    with pytest.raises(ss.InputError, match="no page for a dict"):
        ss.write_report({}, tmp_path / "page.html")
    with pytest.raises(ss.InputError, match="epsilon is not read for a Trial"):
        ss.write_report(trial, tmp_path / "page.html", epsilon=0.2)
    assert list(tmp_path.iterdir()) == []


def store_run(folder, rows):
    folder.mkdir(parents=True)
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    record = {"status": "finished", "seed": 3, "recipe": {"name": "nano", "steps": 200}, "versions": {"python": "3"}}
    (folder / "record.json").write_text(json.dumps(record))
    return folder


def test_runs_and_measurements_become_one_page(tmp_path, runs, measurement):
    store_run(tmp_path / "runs" / "nano-softmax-1", runs[0].rows)
    store_run(tmp_path / "runs" / "nano-sigmoid-2", runs[1].rows)
    measurement.save(tmp_path / "natural.nc")
    page = compose([tmp_path / "runs", tmp_path / "natural.nc"])
    assert [section.title for section in page.sections][:3] == [
        "The sink over training",
        "Sink rate, per position",
        "Attention received, per layer and head",
    ]
    assert [card.value for card in page.headlines] == ["0.0 %", "6.4 %", "16.7 %"]
    assert "seed 3" in page.provenance["run nano-sigmoid-2"]
    assert "at position 0 <bos> (id 0)" in page.provenance["measurement natural"]
    assert "torch 2.13.0" in page.provenance["versions"]


def test_a_single_run_folder(tmp_path, runs):
    stored = read_results([store_run(tmp_path / "run", runs[0].rows)])
    assert [run.label for run in stored.runs] == ["run"]
    assert stored.measurements == {}


def test_equal_names_are_numbered(tmp_path, measurement):
    for folder in ("a", "b", "c"):
        measurement.save(tmp_path / folder / "measurement.nc")
    paths = [tmp_path / folder / "measurement.nc" for folder in ("a", "b", "c")]
    assert list(read_results(paths).measurements) == ["measurement", "measurement (2)", "measurement (3)"]


def test_many_measurements_are_drawn_four_by_four(measurement):
    page = results_page("many", Stored(measurements={f"m{i}": measurement for i in range(6)}))
    maps = [section for section in page.sections if section.title.startswith("Attention received")]
    assert [len(section.figures) for section in maps] == [4, 2]


def test_experiments_stand_before_runs_and_measurements(tmp_path, runs, measurement):
    softmax, sigmoid = {0: experiment_run("softmax", 0, 9.0)}, {0: experiment_run("sigmoid", 0, 1.0)}
    record = findings.write_findings(tmp_path / "results", found(softmax=softmax, sigmoid=sigmoid))
    ss.question(question())
    store_run(tmp_path / "run", runs[0].rows)
    measurement.save(tmp_path / f"natural {EVIL.replace('/', '')}.nc")
    page = compose([tmp_path / "run", next(tmp_path.glob("*.nc")), record])
    assert [section.title for section in page.sections][:4] == [
        "Verdicts",
        "Experiments",
        "The sink over training",
        "Sink rate, per position",
    ]
    assert page.headlines[0].label == "claims open"
    assert {"experiment normalisation, nano", "run run", "versions"} <= set(page.provenance)
    assert "experiments.js" in page.scripts
    assert EVIL.replace("/", "") not in render(page)


def test_many_runs_are_grouped(tmp_path, runs):
    for index in range(13):
        store_run(tmp_path / "runs" / f"nano-{index}", runs[0].rows)
    page = compose([tmp_path / "runs"])
    assert [section.title for section in page.sections] == ["Training runs"]
    assert page.headlines == []
    assert "13 runs" in page.sections[0].widget.values["experiments"][0]["asks"]
    assert "experiments.js" in page.scripts


def test_what_cannot_be_reported_is_named(tmp_path):
    with pytest.raises(InputError, match="nothing at"):
        compose([tmp_path / "absent"])
    with pytest.raises(InputError, match="neither a run folder"):
        compose([tmp_path])
    (tmp_path / "broken.nc").write_bytes(b"not a measurement")
    with pytest.raises(InputError, match=r"broken\.nc"):
        compose([tmp_path / "broken.nc"])
