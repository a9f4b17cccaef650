"""Sweeps: every run once, failures noted, findings kept, interruptions harmless."""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock

from sinkscope.errors import InputError
from sinkscope.experiments import Observed, Variation, find, keys, run, standing_of, verdicts, write_rows
from sinkscope.experiments import findings as kept
from sinkscope.experiments.jobs import LabTraining
from sinkscope.experiments.running import BACKENDS, held
from sinkscope.experiments.sweep.pool import work_locally
from sinkscope.experiments.sweep.store import RunStore, observed
from sinkscope.experiments.sweep.sweeping import Sweep
from sinkscope.experiments.sweep.worker import BUSY, SETTLED, work
from sinkscope.training import Run

from .conftest import recipes
from .helpers import HOST, Here, planted, written


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
    more, less = verdicts(small(seeds=2), found)
    assert (more.grade, less.grade) == ("seen", "not seen")
    assert [evidence.value for evidence in less.evidence] == [found.runs["one"][seed]["loss"] for seed in (0, 1)]
    assert [verdict.reason for verdict in verdicts(small(), found)] == ["4 of 6 runs", "2 of 3 runs"]
    again = kept.read_findings(places["results"], "small", "nano")
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
    assert [verdict.grade for verdict in verdicts(more, found)] == ["seen", "not seen"]


def planting(*failing, **told):
    """A backend that trains nothing, and fails for the runs of these numbers."""

    def backend(jobs, out, workers, watch):
        sweep = Sweep(waiting=[])
        for index, (name, job) in enumerate(jobs.items()):
            if index in failing:
                sweep.failed[name] = "no room"
            else:
                planted(name, out, job.seed, **told)
        return sweep

    return backend


@pytest.mark.parametrize("compiled", [False, True])
def test_a_compiled_experiment_makes_the_same_runs(small, places, compiled):
    handed = []

    def backend(jobs, *others):
        handed.extend(jobs.values())
        return planting()(jobs, *others)

    found = run(small(), seeds=2, backend=backend, compiled=compiled, **places)
    assert len(handed) == 4
    assert all(job.compile == compiled for job in handed)
    assert run(small(), seeds=2, backend=BACKENDS["none"], **places).runs == found.runs


def seeds_of(found):
    return {label: list(seeds) for label, seeds in found.runs.items()}


def test_what_a_record_knows_survives_a_fresh_checkout(small, places):
    first = run(small(), seeds=2, backend=planting(), **places)
    assert first.seeds == 2
    shutil.rmtree(places["out"])
    for seeds in (1, 2, 3):
        again = run(small(), seeds=seeds, backend=BACKENDS["none"], **places)
        assert again == kept.read_findings(places["results"], "small", "nano") == replace(first, seeds=max(seeds, 2))


def test_fewer_seeds_replace_only_themselves(small, places):
    run(small(), seeds=3, backend=planting(value=1.0, version="1"), **places)
    shutil.rmtree(places["out"])
    found = run(small(), seeds=1, backend=planting(value=2.0, version="2"), **places)
    assert found.seeds == 3
    assert [found.runs["two"][seed]["sink_0"] for seed in range(3)] == [2.0, 1.0, 1.0]
    assert found.provenance == {"versions": {"torch": "1, 2"}, "hosts": [{**HOST, "runs": 6}]}
    assert kept.read_findings(places["results"], "small", "nano") == found


def test_a_run_of_another_question_is_dropped(small, places):
    run(small(), seeds=2, backend=planting(), **places)
    shutil.rmtree(places["out"])
    other = small(changes={"attention": "k_bias"})
    found = run(other, seeds=1, backend=BACKENDS["none"], **places)
    assert seeds_of(found) == {"one": [0, 1], "two": []}
    assert found.provenance["hosts"] == [{**HOST, "runs": 2}]
    before = kept.path_of(places["results"], "small", "nano").read_text()
    elsewhere = replace(other, variations=(Variation("one", {"optimizer.lr": 3e-4}), other.variations[1]))
    with pytest.raises(InputError, match=f"no runs of 'small' in {places['out']}"):
        run(elsewhere, seeds=1, backend=BACKENDS["none"], **places)
    assert kept.path_of(places["results"], "small", "nano").read_text() == before
    renamed = replace(other, variations=(Variation("uno"), other.variations[1]))
    assert seeds_of(run(renamed, seeds=1, backend=BACKENDS["none"], **places)) == {"uno": [0, 1], "two": []}


def test_variations_that_are_not_asked_for_and_other_seeds_stay(small, places):
    whole = run(small(), seeds=3, backend=planting(value=1.0), **places)
    shutil.rmtree(places["out"])
    part = replace(small(), variations=small().variations[1:])
    found = run(part, seeds=(1, 4), backend=planting(value=2.0), **places)
    assert seeds_of(found) == {"two": [0, 1, 2, 4], "one": [0, 1, 2]}
    assert [found.runs["two"][seed]["sink_0"] for seed in (0, 1, 2, 4)] == [1.0, 2.0, 1.0, 2.0]
    assert found.runs["one"] == whole.runs["one"]
    assert (found.seeds, found.provenance["hosts"]) == (5, [{**HOST, "runs": 7}])
    assert kept.read_findings(places["results"], "small", "nano") == found


def test_runs_in_the_rows_of_a_question_are_not_made_again_where_that_is_asked_for(small, places, tmp_path):
    store = RunStore(places["out"])
    name = store.run(small().job("one", 0, "nano")).path.name
    known = Observed(name, "finished", 0, {"sink_0": 7.0}, layout=LabTraining.layout)
    write_rows(tmp_path / "runs.jsonl", {(keys(small(), "nano")["one"], 0): known})
    asked = replace(small(), records=tmp_path / "runs.jsonl")
    found = run(asked, seeds=1, backend=planting(value=1.0), reuse=True, **places)
    assert (found.runs["one"][0]["sink_0"], found.runs["two"][0]["sink_0"]) == (7.0, 1.0)
    again = run(asked, seeds=1, backend=planting(value=2.0), results=tmp_path / "other", out=tmp_path / "fresh")
    assert again.runs["one"][0]["sink_0"] == 2.0


def sharing(small):
    """A question whose first variation is that of `small`."""
    return small("wider", {"attention": "k_bias"})


def test_a_run_of_another_record_is_not_made_again_where_that_is_asked_for(small, places):
    run(small(), seeds=2, backend=planting(value=1.0, version="1"), **places)
    shutil.rmtree(places["out"])
    run(sharing(small), seeds=1, backend=planting(value=2.0, version="2"), **places)
    shutil.rmtree(places["out"])
    found = run(sharing(small), seeds=2, backend=planting(value=3.0, version="3"), reuse=True, **places)
    assert [found.runs["one"][seed]["sink_0"] for seed in (0, 1)] == [2.0, 1.0]  # seed 0 of its own record
    assert [found.runs["two"][seed]["sink_0"] for seed in (0, 1)] == [2.0, 3.0]
    assert len(list(places["out"].glob("*"))) == 1
    assert found.provenance == {"versions": {"torch": "1, 2, 3"}, "hosts": [{**HOST, "runs": 4}]}
    assert kept.read_findings(places["results"], "wider", "nano") == found


def test_runs_are_made_again_unless_that_is_asked_for(small, places):
    run(small(), seeds=1, backend=planting(value=1.0), **places)
    shutil.rmtree(places["out"])
    found = run(sharing(small), seeds=1, backend=planting(value=3.0), **places)
    assert (found.runs["one"][0]["sink_0"], found.runs["two"][0]["sink_0"]) == (3.0, 3.0)


def in_layout(places, layout: int) -> None:
    """The record says of its runs that they were read in another layout."""
    path = kept.path_of(places["results"], "small", "nano")
    path.write_text(path.read_text().replace(f'"layout": {LabTraining.layout}', f'"layout": {layout}'))


def test_a_run_without_what_was_added_since_is_taken(small, places):
    run(small(), seeds=1, backend=planting(), **places)
    in_layout(places, LabTraining.older[0])
    shutil.rmtree(places["out"])
    found = run(small(), seeds=1, backend=BACKENDS["none"], **places)
    assert {one.layout for runs in found.runs.values() for one in runs.values()} == {LabTraining.older[0]}


def test_a_run_that_was_read_in_an_older_way_is_not_taken(small, places):
    run(small(), seeds=1, backend=planting(), **places)
    in_layout(places, min(LabTraining.older) - 1)
    shutil.rmtree(places["out"])
    with pytest.raises(InputError, match=f"no runs of 'small' in {places['out']}"):
        run(small(), seeds=1, backend=BACKENDS["none"], **places)
    found = run(small(), seeds=1, backend=planting(value=2.0), reuse=True, **places)
    assert (found.runs["one"][0]["sink_0"], found.runs["two"][0]["sink_0"]) == (2.0, 2.0)


def test_what_another_process_adds_to_the_record_meanwhile_is_not_lost(small, places):
    """It holds the record's lock while it writes, as a queue does."""
    whole = run(small(), seeds=3, backend=planting(), **places)
    path = kept.path_of(places["results"], "small", "nano")
    text = path.read_text()
    first = {label: {0: seeds[0]} for label, seeds in whole.runs.items()}
    kept.write_findings(places["results"], replace(whole, seeds=1, runs=first))
    shutil.rmtree(places["out"])
    answers = []
    other = threading.Thread(target=lambda: answers.append(run(small(), seeds=1, backend=BACKENDS["none"], **places)))
    with held(places["results"], "small", "nano"):
        other.start()
        other.join(0.3)
        assert other.is_alive()
        path.write_text(text)
    other.join(60)
    assert seeds_of(answers[0]) == {"one": [0, 1, 2], "two": [0, 1, 2]}
    assert path.read_text() == text


def test_a_damaged_record_of_another_question_is_passed_over(small, places):
    run(small(), seeds=1, backend=planting(), **places)
    kept.path_of(places["results"], "small", "nano").write_text("{")
    shutil.rmtree(places["out"])
    found = run(sharing(small), seeds=1, backend=planting(value=2.0), reuse=True, **places)
    assert found.runs["one"][0]["sink_0"] == 2.0


def test_a_failure_is_noted_where_no_run_is_known(small, places):
    failed = run(small(), seeds=2, backend=planting(0, 3), **places)
    assert failed.failed == {"one": {0: "no room"}, "two": {1: "no room"}}
    assert seeds_of(failed) == {"one": [1], "two": [0]}
    shutil.rmtree(places["out"])
    found = run(small(), seeds=2, backend=planting(0, 1, 2), **places)
    assert found.failed == {"one": {0: "no room"}}
    assert seeds_of(found) == {"one": [1], "two": [0, 1]}


def test_a_damaged_record_is_told_of_before_anything_runs(small, places):
    run(small(), seeds=1, backend=planting(), **places)
    path = kept.path_of(places["results"], "small", "nano")
    damaged = path.read_text()[:200]
    path.write_text(damaged)
    backend = Here()
    with pytest.raises(InputError, match=f"cannot read {path}"):
        run(small(), seeds=2, backend=backend, **places)
    assert (backend.asked, path.read_text()) == ([], damaged)


def test_nothing_found_and_nothing_recorded_writes_nothing(small, places):
    with pytest.raises(InputError, match=f"no runs of 'small' in {places['out']}"):
        run(small(), seeds=1, backend=BACKENDS["none"], **places)
    assert not list(places["results"].rglob("*.json"))


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
def test_what_is_settled_is_read_once(small, copy, monkeypatch):
    reads, whole = [], Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda path, *args, **options: reads.append(path) or whole(path, *args, **options)
    )
    assert len(run(small(), seeds=2, backend=Here(), **copy).runs) == 2
    for name in ("observed.json", "small.json"):
        of_name = [path for path in reads if path.name == name]
        assert len(of_name) == len(set(of_name)) > 0
    assert max(Counter(path for path in reads if path.name == "record.json").values()) <= 2  # whose provenance is kept


@pytest.mark.slow
def test_what_was_observed_can_be_made_again(swept, copy):
    path = next(copy["out"].glob("*softmax*/observed.json"))
    before = json.loads(path.read_text())
    path.write_text(path.read_text()[:40])
    observed(Run(path.parent), LabTraining)
    assert json.loads(path.read_text()) == before


@pytest.mark.slow
def test_a_run_that_diverges_is_a_result(small, places):
    question = small("wild", {"optimizer.lr": 1e30, "optimizer.clip": None, "schedule.warmup": 0})
    found = run(question, seeds=1, backend=Here(), **places)
    assert found.runs["two"][0].diverged
    assert "diverged" in found.runs["two"][0].reason
    assert verdicts(question, found)[0].grade == "open"
    assert not found.failed


@pytest.mark.slow
def test_a_run_held_by_another_process_is_left_alone(small, places):
    (recipe, _) = recipes(small())
    folder = RunStore(places["out"]).run(recipe).path
    folder.mkdir(parents=True)
    with FileLock(folder / "run.lock"):
        assert work(recipe, places["out"], device="cpu") == BUSY
    assert work(recipe, places["out"], device="cpu") == SETTLED


@pytest.mark.release
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


@pytest.mark.slow
def test_runs_carry_the_hash_that_the_file_had_when_they_started(small, places, tmp_path):
    """Also where the file is edited before the run is resumed, and where a run is known already."""
    path = written(small(), tmp_path / "mine.py")
    first = find(str(path))
    made = run(first, seeds=1, backend=Here(), **places)
    notes = [run.registered["mine"] for seeds in made.runs.values() for run in seeds.values()]
    assert [note["sha256"] for note in notes] == [first.registration.sha256] * 2
    path.write_text(path.read_text() + "# margins loosened\n")
    second = find(str(path))
    again = run(second, seeds=2, backend=Here(), **places)
    hashes = {seed: one.registered["mine"]["sha256"] for seed, one in again.runs["one"].items()}
    assert hashes == {0: first.registration.sha256, 1: second.registration.sha256}
    assert "changed after 2 of 4 runs" in standing_of(second, again).words
