"""Sweeps on a Ray cluster of this machine: the same records, also when a worker is killed."""

from __future__ import annotations

import builtins
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from sinkscope.errors import InputError
from sinkscope.experiments.sweep import on_ray
from sinkscope.experiments.sweep.on_ray import _Tasks, share, work_on_ray
from sinkscope.experiments.sweep.store import RunStore
from sinkscope.experiments.sweep.sweeping import Ended, Sweep
from sinkscope.experiments.sweep.worker import SETTLED, work
from tests.experiments.conftest import recipes
from tests.experiments.helpers import assert_same_runs, has_checkpoint, longer, resumed

ray = pytest.importorskip("ray", reason="the extra 'cluster' is not installed")


# Ray's own: how it will treat GPUs one day, and sockets that it leaves to the garbage collector.
unconcerned = pytest.mark.filterwarnings(
    "ignore::FutureWarning",
    "ignore::ResourceWarning",
    "ignore::DeprecationWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)


@pytest.mark.release
@unconcerned
def test_a_killed_worker_loses_nothing_and_repeats_nothing(small, places, tmp_path, monkeypatch):
    """Two workers, four runs; the process of the first run that has a checkpoint gets a SIGKILL."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("sinkscope.experiments.sweep.on_ray.threads_each", lambda workers: 1)
    jobs = {RunStore(places["out"]).run(recipe).path.name: recipe for recipe in recipes(longer(small()), 2)}
    killed: list[str] = []
    most = [0]

    def watch(sweep: Sweep) -> None:
        most[0] = max(most[0], len(sweep.running))
        ready = [name for name in sweep.running if has_checkpoint(places["out"] / name)]
        if ready and not killed:
            holder = holding(places["out"] / ready[0] / "run.lock")
            if holder is not None:
                os.kill(holder, signal.SIGKILL)
                killed.append(ready[0])

    sweep = work_on_ray(jobs, places["out"], 2, watch)
    assert not ray.is_initialized()
    assert killed
    assert most == [2]
    assert (sorted(sweep.done), sweep.failed) == (sorted(jobs), {})
    for name in jobs:
        assert resumed(places["out"] / name) == (name in killed)
    for recipe in jobs.values():
        assert work(recipe, tmp_path / "calm", device="cpu") == SETTLED
    assert_same_runs(places["out"], tmp_path / "calm")


def holding(lock: Path) -> int | None:
    """The process that holds a lock file open."""
    return next((int(path.name) for path in Path("/proc").glob("[0-9]*") if lock in opened(path)), None)


def opened(process: Path) -> set[Path]:
    try:
        return {link.readlink() for link in (process / "fd").iterdir()}
    except OSError:  # it has ended, or is another user's
        return set()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a cluster of two processors that somebody else started."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    port = f"--port={address.partition(':')[2]}"
    command = ["start", "--head", "--block", port, "--num-cpus=2", "--include-dashboard=false", "--disable-usage-stats"]
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    # as this process has it, whose mode is fixed: a head of its own asks for a token where one lies in the home folder
    options["env"] = os.environ | {"RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE", "disabled")}
    head = subprocess.Popen([sys.executable, "-m", "ray.scripts.scripts", *command], **options)
    while head.poll() is None and not listening(address):
        time.sleep(0.2)
    monkeypatch.setenv("RAY_ADDRESS", address)
    try:
        yield address
    finally:
        os.killpg(head.pid, signal.SIGTERM)
        head.wait()


def listening(address: str) -> bool:
    host, _, port = address.partition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.mark.release
@unconcerned
def test_on_a_cluster_that_exists_failures_have_reasons_and_busy_runs_are_tried_again(
    small, places, cluster, monkeypatch
):
    monkeypatch.setattr("sinkscope.experiments.sweep.sweeping.AGAIN", 0.5)
    named = {RunStore(places["out"]).run(recipe).path.name: recipe for recipe in recipes(small())}
    bad, held = named
    (places["out"] / bad).mkdir(parents=True)
    (places["out"] / bad / "record.json").write_text('{"status": ')
    (places["out"] / held).mkdir()
    lock = FileLock(places["out"] / held / "run.lock", thread_local=False)
    lock.acquire()
    seen = []

    def watch(sweep: Sweep) -> None:
        seen.append(list(sweep.elsewhere))
        if sweep.elsewhere and lock.is_locked:
            lock.release()

    sweep = work_on_ray(named, places["out"], 2, watch)
    assert sweep.done == [held]
    assert [held] in seen
    assert "remove the folder to train this run again" in sweep.failed[bad]
    assert listening(cluster)


def test_what_a_task_asks_of_a_cluster():
    assert share([{"CPU": 16.0}], 4) == {"num_cpus": 4, "num_gpus": 0.0}
    assert share([{"CPU": 16.0, "GPU": 2.0}], 8) == {"num_cpus": 2, "num_gpus": 0.25}
    assert share([{"CPU": 64.0, "GPU": 8.0}], 4) == {"num_cpus": 16, "num_gpus": 1.0}
    assert share([{"CPU": 2.0}], 8) == {"num_cpus": 1, "num_gpus": 0.0}


@pytest.mark.parametrize(
    ("processors", "workers", "asked"),
    [
        ((8, 8), 1, 8),  # a task runs on one machine
        ((8, 8), 2, 8),
        ((8, 8), 3, 4),  # of which each machine has two
        ((9, 4), 2, 4),
        ((7, 5, 3), 5, 2),
        ((0, 6), 2, 3),  # a head that works on nothing
        ((0,), 2, 1),
        ((), 1, 1),
    ],
)
def test_a_task_asks_for_no_more_than_a_machine_has(processors, workers, asked):
    machines = [{"CPU": float(count), "memory": 1e9} if count else {"memory": 1e9} for count in processors]
    assert share(machines, workers)["num_cpus"] == asked


def test_where_there_are_gpus_a_task_fits_a_machine_that_has_one():
    machines = [{"CPU": 64.0}, {"CPU": 8.0, "GPU": 1.0}, {"CPU": 6.0, "GPU": 1.0}]
    assert share(machines, 1) == {"num_cpus": 8, "num_gpus": 1.0}
    assert share(machines, 4) == {"num_cpus": 3, "num_gpus": 0.5}


@pytest.mark.parametrize("gpus", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("workers", [1, 2, 3, 5, 6, 9])
def test_as_many_tasks_as_workers_fit_the_gpus_at_once(gpus, workers):
    """Ray takes a part of a GPU from one GPU alone."""
    part = share([{"CPU": 64.0, "GPU": float(gpus)}], workers)["num_gpus"]
    assert 0 < part <= 1
    assert gpus * int(1 / part + 1e-6) >= workers


class Idle:
    """A Ray of two machines, one of them lost, on which nothing runs."""

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 4.0}}, {"Alive": False, "Resources": {"CPU": 32.0}}]

    def remote(self, **asks: object) -> object:
        return lambda function: function

    def wait(self, references: list[object], **options: object) -> tuple[list[object], list[object]]:
        return [], references


def test_lost_machines_are_asked_for_nothing(tmp_path):
    assert _Tasks(Idle(), {}, tmp_path, 1).resources == {"num_cpus": 4, "num_gpus": 0.0}


def test_an_executor_without_work_waits_a_moment(tmp_path):
    began = time.monotonic()
    assert list(_Tasks(Idle(), {}, tmp_path, 1).ended()) == []
    assert time.monotonic() - began >= on_ray.POLL / 2


def test_a_process_that_is_used_again_forgets_what_it_compiled(tmp_path, monkeypatch):
    happened = []
    monkeypatch.setattr(torch.compiler, "reset", lambda: happened.append("reset"))
    monkeypatch.setattr(on_ray, "job_from", lambda job: job)
    monkeypatch.setattr(on_ray, "work", lambda job, out: happened.append("run") or SETTLED)
    for _ in range(2):
        assert on_ray.task({}, str(tmp_path), torch.get_num_threads()) == (SETTLED, "")
    assert happened == ["reset", "run"] * 2


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ray.exceptions.RayTaskError("task", "a traceback", ValueError("no\nroom")), "ValueError: room"),
        (ray.exceptions.WorkerCrashedError(), "lost by Ray, 4 times: WorkerCrashedError"),
    ],
)
def test_what_a_broken_and_a_lost_task_say(error, said):
    class Ray:
        exceptions = ray.exceptions

        def get(self, reference: object) -> object:
            raise error

    tasks = object.__new__(_Tasks)
    tasks.ray = Ray()
    assert tasks._end("a", object()) == Ended("a", 1, said)


def test_no_ray_is_one_clear_line(small, places, monkeypatch):
    imported = builtins.__import__

    def without(name: str, *args: object, **kwargs: object) -> object:
        if name == "ray":
            raise ImportError(name)
        return imported(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"pip install 'sinkscope\[cluster\]'"):
        work_on_ray({}, places["out"], 1, lambda sweep: None)
    with pytest.raises(InputError, match="workers = 0"):
        work_on_ray({}, places["out"], 0, lambda sweep: None)
