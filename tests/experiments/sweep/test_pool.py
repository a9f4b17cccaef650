"""The pool, with workers that do not train but end as their job says."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sinkscope.experiments import jobs
from sinkscope.experiments.sweep import pool, sweeping
from sinkscope.experiments.sweep.pool import work_locally
from sinkscope.experiments.sweep.sweeping import Sweep

WORKER = """
import json, os, signal, sys, time
seen = []
for line in sys.stdin:
    order = json.loads(line)
    job = json.load(open(order["job"]))["fields"]
    tries = os.path.join(order["out"], job["name"])
    with open(tries, "a") as stream:
        stream.write(f"{os.getpid()} {os.environ['OMP_NUM_THREADS']} {os.environ.get('CUDA_VISIBLE_DEVICES')}\\n")
    count = len(open(tries).readlines())
    do = job["do"][min(count, len(job["do"])) - 1]
    if do == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if do == "crash":
        os.kill(os.getpid(), signal.SIGABRT)
    if do == "leave":
        sys.exit(0)
    if do == "leave afterwards":
        print(0, flush=True)
        sys.exit(0)
    if do == "raise":
        open(order["log"], "a").write("Traceback\\nValueError: no room\\n")
        sys.exit(1)
    if do == "hang":
        time.sleep(600)
    print(do, flush=True)
"""


COMMAND = pool.COMMAND  # the real one


class Job(jobs.Job):
    fingerprint = train = metrics = None

    def __init__(self, name: str, *do: object) -> None:
        self.name, self.do = name, do

    def folder(self, fingerprint: Mapping[str, Any]) -> str:
        return self.name

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        return {"name": self.name, "do": list(self.do)}


@pytest.fixture(autouse=True)
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "COMMAND", (sys.executable, "-S", "-c", WORKER))
    monkeypatch.setattr(sweeping, "AGAIN", 0.05)


def swept(tmp_path: Path, workers: int, **jobs: tuple[object, ...]) -> tuple[Sweep, dict[str, list[str]]]:
    """Where the sweep ended, and the processes that worked on each job."""
    sweep = work_locally({name: Job(name, *do) for name, do in jobs.items()}, tmp_path, workers, lambda sweep: None)
    tries = {name: [line.split()[0] for line in (tmp_path / name).read_text().splitlines()] for name in jobs}
    return sweep, tries


def test_a_worker_makes_one_run_after_another(tmp_path):
    sweep, tries = swept(tmp_path, 1, a=(0,), b=(0,), c=(0,))
    assert sweep.done == ["a", "b", "c"]
    assert len({process for processes in tries.values() for process in processes}) == 1


@pytest.mark.slow
def test_modules_in_the_working_directory_hide_none_of_python(tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "COMMAND", COMMAND)
    monkeypatch.setattr(sys, "path", ["", *sys.path])  # as at a prompt
    monkeypatch.chdir(tmp_path)
    (tmp_path / "json.py").write_text("raise ImportError('not the standard library')")
    worker = pool._Worker(dict(os.environ), tmp_path / "log", 0)
    worker.orders.close()
    assert worker.process.wait(60) == 0, (tmp_path / "log").read_text()
    worker.end()


def test_modules_of_ones_own_are_found_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(
        pool, "COMMAND", (sys.executable, "-S", "-c", "import sys; sys.path[:] = sys.argv[1:]; import mine")
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("")
    worker = pool._Worker(dict(os.environ), tmp_path / "log", 0)
    assert worker.process.wait(60) == 0, (tmp_path / "log").read_text()
    worker.end()


def test_a_killed_worker_is_replaced_and_its_run_taken_up_again(tmp_path):
    sweep, tries = swept(tmp_path, 1, a=("kill", "kill", 0), b=(0,))
    assert (sweep.done, sweep.failed) == (["a", "b"], {})
    assert len(set(tries["a"])) == 3
    assert tries["b"] == tries["a"][-1:]


def test_it_is_not_taken_up_for_ever(tmp_path):
    sweep, tries = swept(tmp_path, 2, a=("kill",), b=(0,))
    assert (sweep.done, sweep.failed) == (["b"], {"a": "killed by signal 9, 3 times before"})
    assert len(tries["a"]) == 1 + sweeping.RETRIES


def test_a_crash_of_its_own_is_not_tried_again(tmp_path):
    sweep, tries = swept(tmp_path, 1, a=("crash",))
    assert sweep.failed == {"a": "killed by signal 6"}
    assert len(tries["a"]) == 1


def test_a_failure_has_its_last_words_and_a_fresh_worker_follows(tmp_path):
    sweep, tries = swept(tmp_path, 1, a=("raise",), b=(2,), c=(0,), d=("leave",))
    assert sweep.done == ["c"]
    assert sweep.failed == {
        "a": "exit code 1: ValueError: no room",
        "b": "exit code 2: no message",
        "d": "exit code 1: no message",
    }
    assert len({tries[name][0] for name in "abc"}) == 3


@pytest.mark.release
def test_a_worker_that_ends_while_idle_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "POLL", 1.0)  # in which it ends, also on a busy machine
    sweep, tries = swept(tmp_path, 1, a=("leave afterwards",), b=("leave afterwards",), c=(0,))
    assert sweep.done == ["a", "b", "c"]
    assert len({process for processes in tries.values() for process in processes}) == 3


def test_a_busy_run_is_asked_for_again(tmp_path):
    sweep, tries = swept(tmp_path, 1, a=(75, 75, 0), b=(0,))
    assert sorted(sweep.done) == ["a", "b"]
    assert len(tries["a"]) == 3


def test_threads_are_shared_out(tmp_path, monkeypatch):
    monkeypatch.delenv(pool.THREADS)
    monkeypatch.setattr(pool, "processors", lambda: 8)
    swept(tmp_path, 3, a=(0,))
    assert (tmp_path / "a").read_text().split()[1] == "2"
    assert [pool.threads_each(workers) for workers in (1, 2, 8, 9)] == [8, 4, 1, 1]


@pytest.mark.parametrize(("said", "threads"), [("3", 3), (" 3,2", 3), ("0", 4), ("-1", 4), ("many", 4), ("", 4)])
def test_a_number_of_threads_that_is_set_stays(tmp_path, monkeypatch, said, threads):
    monkeypatch.setenv(pool.THREADS, said)
    monkeypatch.setattr(pool, "processors", lambda: 8)
    swept(tmp_path, 2, a=(0,))
    assert (tmp_path / "a").read_text().split()[1] == str(threads)


@pytest.mark.parametrize(
    ("environment", "installed", "seen"),
    [
        ({}, 0, []),
        ({}, 3, ["0", "1", "2"]),
        ({"CUDA_VISIBLE_DEVICES": "3, GPU-8f"}, 8, ["3", "GPU-8f"]),
        ({"CUDA_VISIBLE_DEVICES": "5,-1,6"}, 8, ["5"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, 8, []),
    ],
)
def test_the_gpus_that_are_visible(environment, installed, seen):
    assert pool.visible_gpus(environment, lambda: installed) == seen


def test_gpus_are_taken_in_turn_where_there_is_a_choice():
    assert [pool.gpu_of(place, ["3", "7"])["CUDA_VISIBLE_DEVICES"] for place in range(3)] == ["3", "7", "3"]
    assert pool.gpu_of(2, ["3"]) == pool.gpu_of(2, []) == {}


def test_each_worker_has_a_gpu_and_its_successor_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-8f")
    swept(tmp_path, 2, a=(0,), b=(0,))
    swept(tmp_path, 2, c=("kill", "kill", 0))
    gpus = [[line.split()[2] for line in (tmp_path / name).read_text().splitlines()] for name in "abc"]
    assert gpus == [["4"], ["GPU-8f"], ["4", "4", "4"]]


def test_interrupted_it_leaves_no_process(tmp_path):
    started = []

    def watch(sweep: Sweep) -> None:
        if (tmp_path / "a").exists() and (words := (tmp_path / "a").read_text().split()):  # it may be there unwritten
            started.append(int(words[0]))
            raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        work_locally({"a": Job("a", "hang")}, tmp_path, 1, watch)
    assert time.monotonic() - began < 60
    assert not Path(f"/proc/{started[0]}").exists()


@pytest.mark.parametrize("jump", [1e6, -1e6])
def test_a_clock_that_jumps_matters_to_nothing(jump, tmp_path, monkeypatch):
    looks, elapsed = iter(range(10**9)), time.monotonic()
    monkeypatch.setattr(time, "time", lambda: jump * next(looks))

    def watch(sweep: Sweep) -> None:
        assert time.monotonic() - elapsed < 60

    jobs = {name: Job(name, *do) for name, do in {"a": (75, 0), "b": ("kill", 0), "c": (0,)}.items()}
    assert sorted(work_locally(jobs, tmp_path, 2, watch).done) == ["a", "b", "c"]
