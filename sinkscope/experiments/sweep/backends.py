"""Where the runs of a sweep are made."""

from __future__ import annotations

from pathlib import Path

from sinkscope.errors import InputError, unknown
from sinkscope.experiments.job import Job
from sinkscope.experiments.running import Backend
from sinkscope.experiments.sweep.on_ray import work_on_ray
from sinkscope.experiments.sweep.pool import work_locally
from sinkscope.experiments.sweep.runstore import RunStore
from sinkscope.experiments.sweep.sweeping import Jobs, Sweep, Watch


def work_nowhere(jobs: Jobs, out: Path, workers: int, watch: Watch) -> Sweep:
    """Makes nothing. What is not settled stays waiting, and is left out of the findings."""
    store = RunStore(out)
    return Sweep(waiting=[name for name, job in jobs.items() if not _settled(store, job)])


def _settled(store: RunStore, job: Job) -> bool:
    try:
        return store.settled(store.run(job))
    except InputError:
        return False


BACKENDS: dict[str, Backend] = {"local": work_locally, "ray": work_on_ray, "none": work_nowhere}


def backend_named(name: str) -> Backend:
    """The backend of a name. Raises `InputError` for an unknown one."""
    if name not in BACKENDS:
        raise unknown("backend", name, BACKENDS)
    return BACKENDS[name]
