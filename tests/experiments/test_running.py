"""Sweeps: every run once, failures noted, findings kept, interruptions harmless."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
from filelock import FileLock

from sinkscope.errors import InputError
from sinkscope.experiments import Variation, run, verdicts
from sinkscope.experiments import findings as kept
from sinkscope.experiments.observing.settled import observed
from sinkscope.experiments.sweep.backends import BACKENDS
from sinkscope.experiments.sweep.pool import work_locally
from sinkscope.experiments.sweep.runstore import RunStore
from sinkscope.experiments.sweep.sweeping import Sweep
from sinkscope.experiments.sweep.work import BUSY, SETTLED, work
from sinkscope.training import Run

from .conftest import recipes
from .helpers import Here


@pytest.fixture(scope="module")
def swept(small, tmp_path_factory):
    """A finished sweep of two variations and two seeds. Shared: leave it as it is."""
    folder = tmp_path_factory.mktemp("swept")
    places = {"out": folder / "runs", "results": folder / "results"}
    return run(small(), seeds=2, backend=Here(), **places), places


@pytest.fixture
def copy(swept, tmp_path):
    """The places of a copy of it."""
    return {name: shutil.copytree(path, tmp_path / "copy" / name) for name, path in swept[1].items()}


@pytest.mark.slow
def test_findings_have_every_run_and_a_verdict_on_every_claim(small, swept):
    found, places = swept
    assert {label: sorted(seeds) for label, seeds in found.runs.items()} == {"one": [0, 1], "two": [0, 1]}
    assert not found.failed
    one = found.runs["one"][1]
    assert one.seed == 1
    assert one["loss"] == one.curves["validation_loss"][-1] > 0
    assert one.steps == (4, 8, 12)
    supported, refuted = verdicts(small(seeds=2), found)
    assert (supported.outcome, refuted.outcome) == ("supported", "refuted")
    assert [evidence.value for evidence in refuted.evidence] == [found.runs["one"][seed]["sink_0"] for seed in (0, 1)]
    assert {verdict.outcome for verdict in verdicts(small(), found)} == {"inconclusive"}  # two seeds are not three
    again = kept.read(places["results"], "small", "nano")
    assert again == found
    assert verdicts(small(), again) == verdicts(small(), found)


@pytest.mark.slow
def test_what_there_is_can_be_judged_without_making_more(small, copy):
    """A variation that never ran is left out, neither failed nor trained; nothing at all gives no findings of runs."""
    both = small(seeds=2)
    more = replace(both, variations=(*both.variations, Variation("three", {"optimizer.lr": 3e-4})))
    found = run(more, seeds=2, backend=BACKENDS["none"], **copy)
    assert {label: sorted(seeds) for label, seeds in found.runs.items()} == {"one": [0, 1], "two": [0, 1], "three": []}
    assert not found.failed
    assert len(list(copy["out"].glob("*/record.json"))) == 4
    assert [verdict.outcome for verdict in verdicts(more, found)] == ["supported", "refuted"]


@pytest.mark.slow
def test_nothing_runs_twice(small, swept, copy):
    first, backend = swept[0], Here()
    assert run(small(), seeds=2, backend=backend, **copy) == first
    assert not backend.asked
    other = run(small("other", {"attention": "k_bias"}), seeds=1, backend=backend, **copy)
    assert len(backend.asked) == 1  # the softmax is shared
    assert other.runs["one"][0] == first.runs["one"][0]
    assert other.runs["two"][0]["slot"] >= 0


@pytest.mark.slow
def test_what_was_observed_can_be_made_again(swept, copy):
    path = next(copy["out"].glob("*softmax*/observed.json"))
    before = json.loads(path.read_text())
    path.write_text(path.read_text()[:40])
    observed(Run(path.parent))
    assert json.loads(path.read_text()) == before


@pytest.mark.slow
def test_a_run_that_diverges_is_a_result(small, places):
    question = small("wild", {"optimizer.lr": 1e30, "optimizer.clip": None, "schedule.warmup": 0})
    found = run(question, seeds=1, backend=Here(), **places)
    assert found.runs["two"][0].diverged
    assert "diverged" in found.runs["two"][0].reason
    assert verdicts(question, found)[0].outcome == "inconclusive"
    assert not found.failed


@pytest.mark.slow
def test_a_run_that_fails_does_not_stop_the_others(small, places):
    good, bad = recipes(small())
    names = {RunStore(places["out"]).run(recipe).path.name: recipe for recipe in (good, bad)}
    blocked = places["out"] / next(iter(names)) / "checkpoints"
    blocked.parent.mkdir(parents=True)
    blocked.write_text("a file where a folder should be")
    sweep = work_locally(names, places["out"], 2, lambda sweep: None)
    assert len(sweep.done) == 1
    assert "exit code" in sweep.failed[next(iter(names))]


def test_a_run_held_by_another_process_is_left_alone(small, places):
    (recipe, _) = recipes(small())
    folder = RunStore(places["out"]).run(recipe).path
    folder.mkdir(parents=True)
    with FileLock(folder / "run.lock"):
        assert work(recipe, places["out"], device="cpu") == BUSY
    assert work(recipe, places["out"], device="cpu") == SETTLED


@pytest.mark.slow
def test_a_run_held_by_another_process_is_waited_for(small, places, monkeypatch):
    (recipe, _) = recipes(small())
    folder = RunStore(places["out"]).run(recipe).path
    work(recipe, places["out"], device="cpu")
    (folder / "observed.json").unlink()
    monkeypatch.setattr("sinkscope.experiments.sweep.sweeping.AGAIN", 0.1)
    seen = []
    lock = FileLock(folder / "run.lock", thread_local=False)
    lock.acquire()

    def watch(sweep: Sweep) -> None:
        seen.append(list(sweep.elsewhere))
        if sweep.elsewhere and lock.is_locked:
            lock.release()

    sweep = work_locally({folder.name: recipe}, places["out"], 1, watch)
    assert sweep.done == [folder.name]
    assert [folder.name] in seen


def test_bad_input_before_anything_is_written(small, places):
    with pytest.raises(InputError, match="did you mean 'nano'"):
        run(small(), scale="nanoo", **places)
    with pytest.raises(InputError, match="seeds = 0"):
        run(small(), seeds=0, **places)
    with pytest.raises(InputError, match="not run at scale 'nano': too small"):
        run(small(not_at={"nano": "too small"}), **places)
    with pytest.raises(InputError, match="nowhere"):  # found before anything starts
        run(small(changes={"data.tokenizer": "/nowhere/at/all"}), seeds=1, **places)
    with pytest.raises(InputError, match="did you mean 'sigmoid'"):
        run(small(changes={"attention": "sigmoyd"}), **places)
    with pytest.raises(InputError, match="workers = 0"):
        work_locally({"a": recipes(small())[0]}, places["out"], 0, lambda sweep: None)
    assert not places["out"].exists()
    assert verdicts(small(not_at={"nano": "too small"}), None)[0].reason == "too small"
