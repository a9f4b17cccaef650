"""One door to pages: each kind of result has one page, whoever writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

import sinkscope as ss
from sinkscope.measurement import Measurement
from sinkscope.report.page import render
from sinkscope.report.stored import page_of
from sinkscope.report.trial_page import trial_page
from sinkscope.report.writing import page_of_result
from sinkscope.trials import OnePass, Trial, run
from tests.report.test_compose import store_run
from tests.trials.planted import beaten, ids, llama, noisy


@pytest.fixture(scope="module")
def trial() -> Trial:
    arms = [noisy("all", 0.5, baseline=True), beaten(0.2, 0.5)]
    return run(llama(), ids(8), arms, reading=OnePass(), controls=1, about={"kind": "schemes", "scheme": "int<8>"})


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
