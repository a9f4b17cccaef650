"""What the runs of a question would take, estimated from known runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

from sinkscope.experiments.findings import Findings
from sinkscope.experiments.observed import Observed
from sinkscope.experiments.question import Question, Seeds
from sinkscope.experiments.rows import keys

if TYPE_CHECKING:  # jobs load torch
    from sinkscope.experiments.jobs import Job

STORED = 4 * (1 + 3)  # bytes per parameter: a model, and a checkpoint with AdamW's state
Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Expected:
    """What the runs of a question would take.

    `runs` to train and `reused` from records; `seconds` one after the other, None if no similar run is known; `disk` in
    bytes, None for tasks, whose models vary.
    """

    runs: int
    reused: int
    seconds: float | None
    disk: int | None


def expected(
    question: Question, scale: str, findings: Findings | None, seeds: Seeds | None = None, reuse: bool = False
) -> Expected:
    """The time and disk that a question's runs at a scale would take; a run under two labels counts once.

    A run is expected to take as long as other seeds of its variation took, else its steps at the pace of all known
    runs. Where some were made on processors and some on GPUs, those on processors count.

    Args:
        question: The question.
        scale: Its scale.
        findings: Known runs; None for none.
        seeds: Train only these; by default all of the question's.
        reuse: Known runs are not trained again.

    Raises `InputError` as `Question.recipes` does.
    """
    jobs = question.recipes(scale, seeds)
    runs = findings.runs if findings is not None else {}
    key = keys(question, scale)
    job_of = {label: job for (label, _), job in jobs.items()}
    on_processors = any(on_processor(run) for cells in runs.values() for run in cells.values())
    same_key: dict[str, list[float]] = {}
    paces: list[float] = []
    for label, cells in runs.items():
        if label in key:
            timed = [run.seconds for run in cells.values() if not on_processors or on_processor(run)]
            same_key.setdefault(key[label], []).extend(timed)
            steps = _steps(job_of[label].model_dump(mode="json"))
            paces += [seconds / steps for seconds in timed if steps]
    wanted = {(key[label], seed): job for (label, seed), job in jobs.items()}
    reused = {(key[label], seed) for label, cells in runs.items() if label in key for seed in cells} if reuse else set()
    missing = {cell: job for cell, job in wanted.items() if cell not in reused}
    costs = [_cost(job, same_key.get(name, []), paces) for (name, _), job in missing.items()]
    sizes = {name: stored_by(job) for name, job in {name: job for (name, _), job in missing.items()}.items()}
    return Expected(len(missing), len(wanted) - len(missing), _sum(costs), _sum([sizes[name] for name, _ in missing]))


def stored_by(job: Job) -> int | None:
    """The bytes that a run leaves on disk; None if unknown."""
    size = job.parameters()
    return None if size is None else STORED * size


def on_processor(run: Observed) -> bool:
    """Whether a run was trained on a processor, or before that was kept."""
    return run.host.get("device", "cpu") == "cpu"


def _sum(numbers: list[Number | None]) -> Number | None:
    """The sum; None if one of them is unknown."""
    present = [number for number in numbers if number is not None]
    return sum(present) if len(present) == len(numbers) else None


def _cost(job: Job, same_key: list[float], paces: list[float]) -> float | None:
    if same_key:
        return median(same_key)
    steps = _steps(job.model_dump(mode="json"))
    return median(paces) * steps if paces and steps else None


def _steps(fields: Mapping[str, Any]) -> int:
    """The steps of a job; a task may have them in its recipe."""
    steps = fields.get("steps")
    return int(steps if steps is not None else fields.get("recipe", {}).get("steps", 0))
