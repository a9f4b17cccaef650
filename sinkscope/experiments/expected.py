"""What the runs of a question would take, told from runs that are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from sinkscope.experiments.findings import Findings
from sinkscope.experiments.question import Question, Seeds
from sinkscope.experiments.rows import keys

if TYPE_CHECKING:  # jobs load torch
    from sinkscope.experiments.jobs import Job

STORED = 4 * (1 + 3)  # bytes a parameter: a model, and a checkpoint with AdamW's state


@dataclass(frozen=True)
class Expected:
    """What the runs of a question would take: how many, how many of them from records, seconds one after the other
    (None where no like run is known), bytes that they leave (None for tasks, whose models vary)."""

    runs: int
    reused: int
    seconds: float | None
    disk: int | None


def expected(
    question: Question, scale: str, found: Findings | None, seeds: Seeds | None = None, reuse: bool = False
) -> Expected:
    """What a question's runs at a scale would take, runs that stand under two labels once. `found`: those known.

    A run takes what other seeds of its variation took, else its steps at the pace of all that are known. Raises
    `InputError` as `Question.recipes` does.
    """
    jobs = question.recipes(scale, seeds)
    known = found.runs if found is not None else {}
    key = keys(question, scale)
    one = {label: job for (label, _), job in jobs.items()}
    alike: dict[str, list[float]] = {}
    paces: list[float] = []
    for label, runs in known.items():
        if label in key:
            alike.setdefault(key[label], []).extend(run.seconds for run in runs.values())
            steps = _steps(one[label].model_dump(mode="json"))
            paces += [run.seconds / steps for run in runs.values() if steps]
    wanted = {(key[label], seed): job for (label, seed), job in jobs.items()}
    there = {(key[label], seed) for label, runs in known.items() if label in key for seed in runs} if reuse else set()
    missing = {place: job for place, job in wanted.items() if place not in there}
    costs = [_cost(job, alike.get(name, []), paces) for (name, _), job in missing.items()]
    seconds = None if any(cost is None for cost in costs) else sum(cost for cost in costs if cost is not None)
    sizes = [stored_by(job) for job in missing.values()]
    disk = None if any(size is None for size in sizes) else sum(size for size in sizes if size is not None)
    return Expected(len(missing), len(wanted) - len(missing), seconds, disk)


def stored_by(job: Job) -> int | None:
    """Bytes that a run leaves; None where nobody knows before."""
    size = job.parameters()
    return None if size is None else STORED * size


def _cost(job: Job, alike: list[float], paces: list[float]) -> float | None:
    if alike:
        return median(alike)
    steps = _steps(job.model_dump(mode="json"))
    return median(paces) * steps if paces and steps else None


def _steps(fields: Mapping[str, Any]) -> int:
    """The steps of a job; a task may have them in a recipe of its own."""
    own = fields.get("steps")
    return int(own if own is not None else fields.get("recipe", {}).get("steps", 0))
