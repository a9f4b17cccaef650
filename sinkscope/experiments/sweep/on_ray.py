"""The Ray backend: each run is a task that Ray places, on one machine or several."""

from __future__ import annotations

import io
import math
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

POLL = 0.2  # seconds to wait for a run to end
ADDRESS = "RAY_ADDRESS"  # Ray's own variable for an existing cluster
QUIET = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}


def work_on_ray(jobs: Jobs, out: Path, workers: int, watch: Watch) -> Sweep:
    """Train all runs as Ray tasks, at most `workers` at once, each with its share of the processors and GPUs.

    With `RAY_ADDRESS` set they run on that cluster, whose machines must share the folder `out` and have sinkscope
    installed, with the packages that register the tasks; otherwise on a local cluster that lasts as long as the sweep.
    Ray restarts a task whose process or machine is lost, and the run continues from its newest checkpoint. See `drive`
    for the rest. Raises `InputError` for fewer than one worker, without the package `ray`, and if no cluster answers.
    """
    require_workers(workers)
    with _cluster(workers) as ray:
        return drive(jobs, _Tasks(ray, jobs, out.absolute(), workers), workers, watch)


def task(job: dict[str, Any], out: str, threads: int) -> tuple[int, str]:
    """Train one run in a Ray process with `threads` threads; return the exit code of `work` and its stderr."""
    keep_freed_memory()
    torch.set_num_threads(threads)
    torch.compiler.reset()  # Ray reuses processes, and a run must not depend on earlier compilations
    errors = io.StringIO()
    with redirect_stderr(errors):
        code = work(job_from(job), Path(out))
    return code, errors.getvalue()


def share(machines: Sequence[Mapping[str, float]], workers: int) -> dict[str, float]:
    """The resources that a task requests, so that `workers` tasks fill a cluster: whole processors, part of a GPU.

    `machines`: the resources of each (`CPU`, `GPU`). A task runs on one machine and on one GPU. It requests the most
    processors that `workers` tasks can have at once on the machines (those with GPUs, if any have them), and never more
    than one machine has, for which Ray would wait forever.
    """
    fit = [machine for machine in machines if machine.get("GPU", 0.0)] or machines
    sizes = [int(machine.get("CPU", 0.0)) for machine in fit]
    enough = (each for each in range(max(sizes, default=0), 1, -1) if sum(size // each for size in sizes) >= workers)
    gpus = sum(machine.get("GPU", 0.0) for machine in fit)
    # Three tasks on two GPUs take halves: of two thirds each, no GPU has room for a second.
    return {"num_cpus": float(next(enough, 1)), "num_gpus": 1 / math.ceil(workers / gpus) if gpus else 0.0}


class _Tasks:
    """Ray's tasks, by the name of the run."""

    def __init__(self, ray: Any, jobs: Jobs, out: Path, workers: int) -> None:
        self.ray, self.jobs, self.out = ray, jobs, out
        self.resources = share([node["Resources"] for node in ray.nodes() if node["Alive"]], workers)
        self.remote = ray.remote(max_retries=RETRIES, **self.resources)(task)
        self.running: dict[Any, str] = {}

    def start(self, name: str) -> None:
        job = as_json(self.jobs[name])
        self.running[self.remote.remote(job, str(self.out), int(self.resources["num_cpus"]))] = name

    def ended(self) -> Iterator[Ended]:
        if not self.running:
            time.sleep(POLL)  # other processes hold all runs; Ray does not wait for an empty list
            return
        ready, _ = self.ray.wait(list(self.running), num_returns=len(self.running), timeout=POLL)
        for reference in ready:
            yield self._end(self.running.pop(reference), reference)

    def stop(self) -> None:
        for reference in self.running:
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
    return (text.strip() or "no message").splitlines()[-1]


@contextmanager
def _cluster(workers: int) -> Iterator[Any]:
    """Ray, connected: an existing connection of this process, `RAY_ADDRESS`, or a local cluster."""
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
