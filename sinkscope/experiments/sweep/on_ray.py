"""The Ray backend: the same work as locally, each run a task that Ray places, on one machine or many."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch

from sinkscope.errors import InputError
from sinkscope.experiments.jobs import as_json, job_from
from sinkscope.experiments.sweep.pool import threads_each
from sinkscope.experiments.sweep.sweeping import RETRIES, Ended, Jobs, Sweep, Watch, drive, require_workers
from sinkscope.experiments.sweep.worker import SETTLED, work
from sinkscope.training import keep_freed_memory

POLL = 0.2  # seconds until a look at what ended gives up
ADDRESS = "RAY_ADDRESS"  # Ray's own variable, which names an existing cluster
QUIET = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}


def work_on_ray(jobs: Jobs, out: Path, workers: int, watch: Watch) -> Sweep:
    """Make all runs as Ray tasks, at most `workers` at once, each with its share of the processors and GPUs.

    With `RAY_ADDRESS` set they run on that cluster, whose machines must share the folder `out` and have sinkscope
    installed, with the packages that register the tasks; without it on a cluster on this machine that lasts as long as
    the sweep. Ray starts a task again whose process or machine is lost, and the run goes on from its newest checkpoint.
    All else as in `drive`. Raises `InputError` for fewer than one worker, without the package `ray`, and where no
    cluster answers.
    """
    require_workers(workers)
    with _cluster(workers) as ray:
        return drive(jobs, _Tasks(ray, jobs, out.absolute(), workers), workers, watch)


def task(job: dict[str, Any], out: str, threads: int) -> tuple[int, str]:
    """What a Ray process does: one run, on so many threads; the exit code of `work`, and what it wrote to stderr."""
    keep_freed_memory()
    torch.set_num_threads(threads)
    torch.compiler.reset()  # Ray uses a process again, and a run must not depend on what was compiled before it
    errors = io.StringIO()
    with redirect_stderr(errors):
        code = work(job_from(job), Path(out))
    return code, errors.getvalue()


def share(machines: Sequence[Mapping[str, float]], workers: int) -> dict[str, float]:
    """What a task asks of a cluster, so that `workers` of them fill it: whole processors, and a part of a GPU.

    `machines`: the resources of each (`CPU`, `GPU`). A task runs on one of them: it asks for the most processors of
    which the machines (those with GPUs, where there are such) have `workers` times as many, never for more than one
    machine has, which Ray would wait for without end.
    """
    fit = [machine for machine in machines if machine.get("GPU", 0.0)] or machines
    sizes = [int(machine.get("CPU", 0.0)) for machine in fit]
    enough = (each for each in range(max(sizes, default=0), 1, -1) if sum(size // each for size in sizes) >= workers)
    gpus = sum(machine.get("GPU", 0.0) for machine in fit)
    return {"num_cpus": float(next(enough, 1)), "num_gpus": min(1.0, gpus / workers)}


class _Tasks:
    """Ray's tasks, by the name of the run."""

    def __init__(self, ray: Any, jobs: Jobs, out: Path, workers: int) -> None:
        self.ray, self.jobs, self.out = ray, jobs, out
        self.asks = share([node["Resources"] for node in ray.nodes() if node["Alive"]], workers)
        self.remote = ray.remote(max_retries=RETRIES, **self.asks)(task)
        self.going: dict[Any, str] = {}

    def start(self, name: str) -> None:
        job = as_json(self.jobs[name])
        self.going[self.remote.remote(job, str(self.out), int(self.asks["num_cpus"]))] = name

    def ended(self) -> Iterator[Ended]:
        if not self.going:
            time.sleep(POLL)  # where others hold all runs; Ray waits for nothing at once
            return
        ready, _ = self.ray.wait(list(self.going), num_returns=len(self.going), timeout=POLL)
        for reference in ready:
            yield self._end(self.going.pop(reference), reference)

    def stop(self) -> None:
        for reference in self.going:
            self.ray.cancel(reference, force=True)

    def _end(self, name: str, reference: Any) -> Ended:
        try:
            code, errors = self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            return Ended(name, 1, f"{type(error.cause).__name__}: {_last_line(str(error.cause))}")
        except self.ray.exceptions.RayError as error:
            return Ended(name, 1, f"lost by Ray, {RETRIES + 1} times: {type(error).__name__}")
        return Ended(name, code, "" if code == SETTLED else f"exit code {code}: {_last_line(errors)}")


def _last_line(text: str) -> str:
    return (text.strip() or "it said nothing").splitlines()[-1]


@contextmanager
def _cluster(workers: int) -> Iterator[Any]:
    """Ray, connected: to what this process is connected to already, to `RAY_ADDRESS`, or to a cluster of its own."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise InputError("the backend 'ray' needs the package 'ray': pip install 'sinkscope[cluster]'") from error
    if ray.is_initialized():
        yield ray
        return
    try:
        if ADDRESS in os.environ:
            ray.init(**QUIET)
        else:
            ray.init(address="local", num_cpus=workers * threads_each(workers), **QUIET)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise InputError(
            f"no Ray cluster at {os.environ.get(ADDRESS, 'this machine')}: {_last_line(str(error))}"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()
