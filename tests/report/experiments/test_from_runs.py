"""Many training runs, grouped by what differs in their recipes."""

from __future__ import annotations

import math

import pytest

from sinkscope.report.experiments.from_runs import entry_of_runs
from sinkscope.report.experiments.page import runs_section
from sinkscope.report.runs import StoredRun
from tests.report.conftest import log_rows


def stored(name, seed, status="finished", height=6.0, **changed):
    recipe = {
        "name": "nano",
        "seed": seed,
        "save_every": seed + 1,
        "optimizer": {"lr": 0.004, "name": "adamw"},
        **changed,
    }
    record = {"status": status, "seed": seed, "recipe": recipe, "seconds": 60.0, "reason": None}
    return StoredRun(name, log_rows(height), record)


@pytest.fixture
def entry():
    slow = {"optimizer": {"lr": 0.001, "name": "adamw"}}
    runs = [stored("a", 0), stored("b", 1, height=8.0), stored("c", 0, "diverged", **slow), StoredRun("d", ())]
    return entry_of_runs(runs)


def test_runs_of_one_recipe_stand_together_by_seed(entry):
    labels = [label for label, _ in entry.runs]
    assert labels[0] == labels[1] == "lr = 0.004, name = adamw"
    assert [(run.run, run.seed, run.status) for _, run in entry.runs] == [
        ("a", 0, "finished"),
        ("b", 1, "finished"),
        ("c", 0, "diverged"),
        ("d", 0, "unknown"),
    ]
    assert entry.variations[1].changes["optimizer.lr"] == 0.001
    assert entry.asks == "4 runs, 3 configurations"


def test_only_fields_that_differ_are_named():
    slow = {"optimizer": {"lr": 0.001, "name": "adamw"}}
    made = entry_of_runs([stored("a", 0), stored("c", 0, **slow)])
    assert [variation.changes for variation in made.variations] == [{"optimizer.lr": 0.004}, {"optimizer.lr": 0.001}]
    assert [variation.label for variation in made.variations] == ["lr = 0.004", "lr = 0.001"]


def test_the_same_recipe_and_seed_twice_is_told_apart_by_the_name():
    made = entry_of_runs([stored("a", 0), stored("again", 0)])
    assert [label for label, _ in made.runs] == ["all", "all (again)"]


def test_curves_are_those_of_evaluations_and_metrics_the_last(entry):
    first = entry.runs[0][1]
    assert first.steps == (50, 100, 150, 200)
    assert first.curves["sink/position_0"] == pytest.approx((1.5, 3.0, 4.5, 6.0))
    assert first["sink_0"] == pytest.approx(6.0)
    assert first["loss"] == pytest.approx(3.12)
    assert first["train_loss"] == pytest.approx(3.02)
    assert math.isnan(entry.runs[-1][1]["loss"])


def test_their_section_has_their_configurations_and_figures(entry):
    section = runs_section(entry)
    assert section.title == "Training runs"
    assert list(section.widget.data["runs-data"]["figures"]) == ["dose0", "training", "loss"]
    (shown,) = section.widget.values["experiments"]
    assert "optimizer.lr" in shown["configurations"].columns
