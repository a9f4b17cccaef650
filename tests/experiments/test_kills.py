"""`kill -9` at random moments, of the whole sweep, of its runner alone, of workers: nothing is lost or repeated.

`SINKSCOPE_KILLS=20` for as many kills of the whole sweep.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sinkscope.experiments import find, run
from sinkscope.experiments.sweep import pool
from sinkscope.experiments.sweep.pool import work_locally
from sinkscope.experiments.sweep.store import RunStore
from sinkscope.experiments.sweep.sweeping import Sweep
from sinkscope.experiments.sweep.worker import SETTLED, work
from sinkscope.training.machine import processors

from .conftest import recipes
from .helpers import Here, alive, assert_same_runs, children, has_checkpoint, longer, resumed, timeless, written

KILLS = int(os.environ.get("SINKSCOPE_KILLS", "3"))
WORKERS = processors()  # so that each has one thread, like this process

pytestmark = [pytest.mark.release, pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")]


@pytest.fixture
def mine(small, tmp_path: Path) -> Path:
    return written(longer(small()), tmp_path / "mine.py")


def sweep_of(mine: Path, folder: Path) -> subprocess.Popen[bytes]:
    """`experiment run` in a process group of its own."""
    places = ("--out", str(folder / "runs"), "--results", str(folder / "results"))
    command = (sys.executable, "-m", "sinkscope", "experiment", "run", str(mine), "--seeds", "2", *places)
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([*command, "--workers", str(WORKERS)], start_new_session=True, **silent)


def calm(mine: Path, folder: Path) -> Path:
    run(find(str(mine)), seeds=2, out=folder / "runs", results=folder / "results", backend=Here())
    return folder


def ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        return process.wait(timeout=seconds) is not None
    except subprocess.TimeoutExpired:
        return False


def until(condition, seconds: float = 400.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def training(folder: Path) -> bool:
    """Whether a run has begun that has not been seen to its end."""
    return any(not (path.parent / "observed.json").exists() for path in (folder / "runs").glob("*/recipe.json"))


def test_kills_of_the_whole_sweep(mine, tmp_path):
    """A sweep that ends before the last kill begins again. Kills come from before the first run to after the last."""
    undisturbed, folder, draw = calm(mine, tmp_path / "calm"), tmp_path / "killed", random.Random(KILLS)
    began = time.monotonic()
    assert sweep_of(mine, folder).wait(timeout=400) == 0
    whole, kills = time.monotonic() - began, 0
    while kills < KILLS:
        assert_same_runs(folder / "runs", undisturbed / "runs")
        shutil.rmtree(folder)
        while kills < KILLS:
            process = sweep_of(mine, folder)
            if draw.random() < 0.7:  # amid the runs rather than the imports
                until(lambda process=process: training(folder) or process.poll() is not None)
            if ended(process, draw.uniform(0, 0.5 * whole)):
                assert process.returncode == 0
                break
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
        assert sweep_of(mine, folder).wait(timeout=400) == 0
    assert_same_runs(folder / "runs", undisturbed / "runs")
    found, expected = (timeless(place / "results" / "nano" / "mine.json") for place in (folder, undisturbed))
    assert {**found, "provenance": None} == {**expected, "provenance": None}


def test_kills_of_the_runner_alone_leave_no_strays(mine, tmp_path):
    """Its workers end by themselves, amid a training, and the next sweep goes on."""
    folder = tmp_path / "orphaned"
    process = sweep_of(mine, folder)
    assert until(lambda: any(has_checkpoint(path) for path in (folder / "runs").glob("*")))
    workers = children(process.pid)
    assert workers
    process.kill()
    process.wait()
    assert until(lambda: not any(map(alive, workers)), seconds=10)
    assert sweep_of(mine, folder).wait(timeout=400) == 0
    assert_same_runs(folder / "runs", calm(mine, tmp_path / "calm") / "runs")


def test_kills_of_workers_alone(small, places, tmp_path, monkeypatch):
    """Every run loses its worker once it has a checkpoint; one sweep makes them all, each resumed once."""
    monkeypatch.setattr(pool, "threads_each", lambda workers: 1)  # as in this process
    jobs = {RunStore(places["out"]).run(recipe).path.name: recipe for recipe in recipes(longer(small()))}
    killed: list[str] = []

    def watch(sweep: Sweep) -> None:
        ready = [name for name in sweep.running if name not in killed and has_checkpoint(places["out"] / name)]
        if ready and len(sweep.running) == 1:
            killed.extend(ready)
            (worker,) = children(os.getpid())
            os.kill(worker, signal.SIGKILL)

    sweep = work_locally(jobs, places["out"], 1, watch)
    assert (sweep.done, sweep.failed) == (list(jobs), {})
    assert killed == list(jobs)
    assert [resumed(places["out"] / name) for name in jobs] == [1, 1]
    for recipe in jobs.values():
        assert work(recipe, tmp_path / "calm", device="cpu") == SETTLED
    assert_same_runs(places["out"], tmp_path / "calm")
