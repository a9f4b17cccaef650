import json

import pytest

import sinkscope as ss
from sinkscope.errors import InputError
from sinkscope.experiments import findings
from sinkscope.report.compose import compose, results_page
from sinkscope.report.page import render
from sinkscope.report.stored import Stored, read_results
from tests.report.experiments.conftest import EVIL, found, question, run


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
    softmax, sigmoid = {0: run("softmax", 0, 9.0)}, {0: run("sigmoid", 0, 1.0)}
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
