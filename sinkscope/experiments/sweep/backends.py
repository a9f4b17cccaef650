"""Where the runs of a sweep are made."""

from __future__ import annotations

from sinkscope.errors import unknown
from sinkscope.experiments.running import Backend
from sinkscope.experiments.sweep.on_ray import work_on_ray
from sinkscope.experiments.sweep.pool import work_locally

BACKENDS: dict[str, Backend] = {"local": work_locally, "ray": work_on_ray}


def backend_named(name: str) -> Backend:
    """The backend of a name. Raises `InputError` for an unknown one."""
    if name not in BACKENDS:
        raise unknown("backend", name, BACKENDS)
    return BACKENDS[name]
