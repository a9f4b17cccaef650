"""What makes a run, by kind: the one place that knows which kinds of jobs there are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinkscope.errors import unknown
from sinkscope.experiments.job import Job
from sinkscope.experiments.observing.settled import lab_metrics
from sinkscope.experiments.tasks import backcopy, conditional_run, minimal_run
from sinkscope.experiments.tasks.backcopy import Backcopy
from sinkscope.experiments.tasks.conditional import TriggerConditional
from sinkscope.experiments.tasks.minimal import Minimal
from sinkscope.training import SAID_BY_FINGERPRINT, Recipe, Run, fingerprint, train

RECIPE = "recipe"


@dataclass(frozen=True, kw_only=True)
class JobKind:
    """How jobs of one kind are named, done and read.

    `reads` names what text a job reads, so that its `fingerprint` is taken once; `do` trains or goes on, and raises as
    `sinkscope.train` does; `metrics` gives what is known of a finished run, and `layout` is raised when these metrics,
    or how they are made, change: what was kept of older runs is then made again.
    """

    build: type[Any]
    reads: Callable[[Any], str]
    fingerprint: Callable[[Any], dict[str, Any]]
    do: Callable[[Any, Path, str], Run]
    metrics: Callable[[Run], Iterable[tuple[str, float]]]
    layout: int


def _text_of(recipe: Recipe) -> str:
    data = recipe.data.model_dump(mode="json")
    return json.dumps([recipe.start_from, {name: data[name] for name in sorted(SAID_BY_FINGERPRINT)}])


def _train(recipe: Recipe, out: Path, device: str) -> Run:
    return train(recipe, out, resume=True, progress=False, device=device)


KINDS: dict[str, JobKind] = {
    RECIPE: JobKind(build=Recipe, reads=_text_of, fingerprint=fingerprint, do=_train, metrics=lab_metrics, layout=4),
    "bigram_backcopy": JobKind(
        build=Backcopy,
        reads=lambda job: repr(job.told),
        fingerprint=Backcopy.fingerprint,
        do=Backcopy.train,
        metrics=backcopy.metrics,
        layout=3,
    ),
    "bigram_backcopy_minimal": JobKind(
        build=Minimal,
        reads=lambda job: repr(job.told),
        fingerprint=Minimal.fingerprint,
        do=lambda job, out, device: minimal_run.train(job, out),
        metrics=minimal_run.metrics,
        layout=1,
    ),
    "trigger_conditional": JobKind(
        build=TriggerConditional,
        reads=lambda job: "",
        fingerprint=TriggerConditional.fingerprint,
        do=lambda job, out, device: conditional_run.train(job, out),
        metrics=conditional_run.metrics,
        layout=2,
    ),
}


def kind_of(job: Job) -> JobKind:
    """The kind of a job."""
    return next(kind for kind in KINDS.values() if isinstance(job, kind.build))


def kind_of_run(run: Run) -> JobKind:
    """The kind of job that made a run. Raises `InputError` for a run without a record."""
    return _kind(run.record["data"])


def job_from(data: Mapping[str, Any]) -> Job:
    """A job from what `model_dump` made of it. Raises `InputError` for unknown tasks and wrong fields."""
    return _kind(data).build(**data)


def _kind(data: Mapping[str, Any]) -> JobKind:
    name = data.get("task", RECIPE)
    if name not in KINDS:
        raise unknown("task", str(name), KINDS)
    return KINDS[name]
