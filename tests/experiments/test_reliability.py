"""A full disk, a read-only folder, two runners on one folder, a clock that jumps, half-written records."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sinkscope import files
from sinkscope.errors import InputError
from sinkscope.experiments import findings as kept
from sinkscope.experiments import run
from sinkscope.experiments.sweep.store import RunStore
from sinkscope.experiments.sweep.worker import SETTLED, work
from tests.victims import no_file_above

from .conftest import recipes
from .helpers import Here, assert_same_runs, timeless, written

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
FORBIDDEN = Path("/proc/sinkscope")  # where nobody may make a folder, root neither


@pytest.fixture(scope="module")
def calm(small, tmp_path_factory) -> Path:
    """The places of a sweep of two runs to which nothing happened. Shared: leave them as they are."""
    folder = tmp_path_factory.mktemp("calm")
    run(small(), seeds=1, out=folder / "runs", results=folder / "results", backend=Here())
    return folder


@pytest.fixture
def copy(calm: Path, tmp_path: Path) -> dict[str, Path]:
    folder = Path(shutil.copytree(calm, tmp_path / "copy"))
    return {"out": folder / "runs", "results": folder / "results"}


def first_of(out: Path) -> Path:
    return next(out.glob("*softmax*"))


@pytest.mark.release
def test_a_run_with_half_a_record_is_reported_and_stops_nobody(small, calm, copy):
    damaged = first_of(copy["out"])
    before = (damaged / "record.json").read_text()
    (damaged / "record.json").write_text(before[: len(before) // 2])
    shutil.rmtree(copy["results"])  # whose runs would be kept
    found = run(small(), seeds=1, backend=said, **copy)
    assert "remove the folder to train this run again" in found.failed["one"][0]
    assert list(found.runs["two"]) == [0]
    assert kept.read_findings(copy["results"], "small", "nano") == found
    (damaged / "record.json").write_text(before)  # what was not lost is found again
    assert run(small(), seeds=1, backend=said, **copy).failed == {}
    shutil.rmtree(damaged)
    assert run(small(), seeds=1, backend=Here(), **copy).failed == {}
    assert_same_runs(copy["out"], calm / "runs")


def said(jobs, out, workers, watch):
    """A backend in this process that fails with the reason that `work` gives."""
    from contextlib import redirect_stderr
    from io import StringIO

    from sinkscope.experiments.sweep.sweeping import Sweep

    sweep = Sweep([])
    for name, job in jobs.items():
        words = StringIO()
        with redirect_stderr(words):
            code = work(job, out, device="cpu")
        if code == SETTLED:
            sweep.done.append(name)
        else:
            sweep.failed[name] = words.getvalue()
    return sweep


@pytest.mark.parametrize("spoiled", [lambda text: text[:100], lambda text: text.replace('"layout"', '"old"', 1)])
def test_half_an_observation_and_an_old_one_are_made_again_by_a_worker(spoiled, small, calm, copy):
    path, backend = first_of(copy["out"]) / "observed.json", Here()
    path.write_text(spoiled(path.read_text()))
    assert run(small(), seeds=1, backend=backend, **copy).failed == {}
    assert backend.asked == [path.parent.name]
    assert_same_runs(copy["out"], calm / "runs")


def test_half_findings_are_told_of_and_once_removed_made_again(small, calm, copy):
    path = kept.path_of(copy["results"], "small", "nano")
    path.write_text(path.read_text()[:100])
    with pytest.raises(InputError, match=f"cannot read {path}.*move it away"):
        run(small(), seeds=1, backend=said, **copy)
    path.unlink()
    run(small(), seeds=1, backend=said, **copy)
    assert json.loads(path.read_text()) == json.loads(kept.path_of(calm / "results", "small", "nano").read_text())


def test_a_lost_model_is_one_failed_run(small, copy):
    folder = first_of(copy["out"])
    shutil.rmtree(folder / "model")
    (folder / "observed.json").unlink()
    shutil.rmtree(copy["results"])
    found = run(small(), seeds=1, backend=said, **copy)
    assert list(found.failed) == ["one"]
    assert list(found.runs["two"]) == [0]


def test_a_full_disk_keeps_the_runs_and_the_findings_of_before(small, copy, monkeypatch):
    path = kept.path_of(copy["results"], "small", "nano")
    record = json.loads(path.read_text())
    record["provenance"]["versions"]["torch"] = "another"  # as it was before, it would not be written again
    path.write_text(json.dumps(record))
    before, replace = path.read_text(), os.replace

    def full(source: object, target: object) -> None:
        if str(target) == str(path):
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(InputError, match=r"cannot write .*No space left on device"):
        run(small(), seeds=1, backend=said, **copy)
    assert path.read_text() == before
    assert {entry.name for entry in path.parent.iterdir()} == {path.name, ".small.lock"}
    monkeypatch.undo()
    asked = Here()
    run(small(), seeds=1, backend=asked, **copy)
    assert asked.asked == []


@pytest.mark.release
def test_a_limit_on_file_size_stops_the_saves_of_one_run(small, places):
    """The operating system refuses; the reason arrives, and without the limit the sweep goes on."""
    big = small(changes={"model.hidden_size": 128, "model.num_attention_heads": 2})
    with no_file_above(400_000):
        found = run(big, seeds=1, backend=said, **places)
    assert found.failed["two"][0].startswith("cannot save")
    assert found.failed["two"][0].count("\n") == 1
    assert list(found.runs["one"]) == [0]
    assert run(big, seeds=1, backend=Here(), **places).failed == {}


def test_folders_that_cannot_be_written_are_named_before_anything_runs(small, places):
    backend = Here()
    for which in ("out", "results"):
        with pytest.raises(InputError, match=f"cannot write to {FORBIDDEN}"):
            run(small(), seeds=1, backend=backend, **{**places, which: FORBIDDEN})
    assert backend.asked == []


def test_runs_of_a_read_only_folder_are_read(small, copy, monkeypatch):
    """Where nothing is to be made, nothing has to be written."""
    from sinkscope.experiments import running

    def read_only(folder: Path) -> None:
        if folder == copy["out"]:
            raise InputError("cannot write")

    monkeypatch.setattr(running, "check_writable", read_only)
    assert run(small(), seeds=1, backend=said, **copy).failed == {}


@pytest.mark.release
def test_a_clock_that_jumps_changes_nothing(small, calm, places, monkeypatch):
    """Back by years and forth again, at every look."""
    real, looks = time.time, iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: real() + 1e8 * (-1) ** next(looks))
    found = run(small(), seeds=1, backend=Here(), **places)
    assert_same_runs(places["out"], calm / "runs")
    assert all(0 <= one.seconds < 600 for seeds in found.runs.values() for one in seeds.values())


@pytest.mark.release
def test_two_runners_on_one_folder_share_its_runs(small, calm, tmp_path):
    """Both end with the same findings, and no run is trained twice."""
    question = written(small(), tmp_path / "mine.py")
    program = (
        "import sys; from sinkscope.experiments.sweep import pool, sweeping; sweeping.AGAIN = 0.3\n"
        "pool.COMMAND = (sys.executable, '-m', 'tests.experiments.counting_worker')\n"
        "pool.threads_each = lambda workers: 1  # as in this process\n"
        "from sinkscope.cli import main; raise SystemExit(main())"
    )
    command = ["-c", program, "experiment", "run", str(question), "--seeds", "1", "--out", str(tmp_path / "runs")]
    environment = os.environ | {"COUNTS": str(tmp_path / "counts")}
    runners = [
        subprocess.Popen([sys.executable, *command, "--results", str(tmp_path / name)], cwd=ROOT, env=environment)
        for name in ("first", "second")
    ]
    try:
        assert [runner.wait(timeout=400) for runner in runners] == [0, 0]
    finally:
        for runner in runners:
            runner.kill()
            runner.wait()
    trained = (tmp_path / "counts").read_text().split()
    assert sorted(trained) == sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert_same_runs(tmp_path / "runs", calm / "runs")
    one, other = (timeless(tmp_path / name / "nano" / "mine.json") for name in ("first", "second"))
    assert one == other


def test_a_run_that_lies_half_removed_is_made_again(small, calm, copy):
    """Neither record nor model: what is left of a folder does not count as a run."""
    folder = first_of(copy["out"])
    for name in ("record.json", "observed.json"):
        (folder / name).unlink()
    shutil.rmtree(folder / "model")
    assert not RunStore(copy["out"]).settled(recipes(small())[0])
    assert run(small(), seeds=1, backend=Here(), **copy).failed == {}
    assert_same_runs(copy["out"], calm / "runs")
