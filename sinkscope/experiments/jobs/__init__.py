"""The jobs that questions vary: training the lab model, and synthetic tasks, which need seconds to minutes.

A new one is a class in a file of its own and a line in `TASKS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sinkscope.errors import unknown
from sinkscope.experiments.jobs.backcopy import Backcopy
from sinkscope.experiments.jobs.backcopy_minimal import Minimal
from sinkscope.experiments.jobs.conditional import TriggerConditional
from sinkscope.experiments.jobs.job import Job, Task
from sinkscope.experiments.jobs.lab import LabTraining
from sinkscope.training import Run

__all__ = ["JOBS", "Job", "LabTraining", "job_class", "job_from", "task_named"]

TASKS: dict[str, type[Task]] = {
    "bigram_backcopy": Backcopy,
    "bigram_backcopy_minimal": Minimal,
    "trigger_conditional": TriggerConditional,
}
JOBS: dict[str, type[Job]] = {"recipe": LabTraining, **TASKS}


def task_named(name: str) -> type[Task]:
    """The class of a task by its name. Raises `InputError` for an unknown one."""
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name]


def job_from(data: Mapping[str, Any]) -> Job:
    """A job from what `model_dump` made of it. Raises `InputError` for unknown tasks and wrong fields."""
    return _class_of(data)(**data)


def job_class(run: Run) -> type[Job]:
    """The class of the job that made a run. Raises `InputError` for a run without a record."""
    return _class_of(run.record["data"])


def _class_of(data: Mapping[str, Any]) -> type[Job]:
    """Both a job's fields and a run's fingerprint name a task; those of a recipe name none."""
    return task_named(str(data["task"])) if "task" in data else LabTraining
