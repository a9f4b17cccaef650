"""The jobs that questions vary: training the lab model on text, and the tasks that installed packages register."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sinkscope.errors import unknown
from sinkscope.experiments.jobs.job import Job, Task
from sinkscope.experiments.jobs.lab import LabTraining, training_metrics, validation_windows
from sinkscope.registry import Registry

__all__ = [
    "TASKS",
    "Job",
    "LabTraining",
    "Task",
    "as_json",
    "job_from",
    "task_named",
    "training_metrics",
    "validation_windows",
]

TASKS: Registry[type[Job]] = Registry("task")


def task_named(name: str) -> type[Job]:
    """The class of a task by name. Raises `InputError` for an unknown one."""
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name]


def as_json(job: Job) -> dict[str, Any]:
    """A job as plain JSON, from which another process rebuilds it (`job_from`)."""
    return {"kind": job.kind, "fields": job.model_dump(mode="json")}


def job_from(data: Mapping[str, Any]) -> Job:
    """A job from the result of `as_json`. Raises `InputError` for unknown tasks and wrong fields."""
    kind = LabTraining if data["kind"] == LabTraining.kind else task_named(data["kind"])
    return kind(**data["fields"])
