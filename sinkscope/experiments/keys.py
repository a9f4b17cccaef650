"""Which variations are the same run: the key of a job, with which rows of runs are found."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from sinkscope.errors import InputError
from sinkscope.experiments.question import Question

if TYPE_CHECKING:  # jobs load torch
    from sinkscope.experiments.jobs import Job

Key = tuple[str, int]  # the key of a job, and a seed


def keys(question: Question, scale: str) -> dict[str, str]:
    """The key of each variation by its label; variations with one key have, seed by seed, one run.

    Empty at a scale at which the question cannot be asked. Raises `InputError` for wrong recipes.
    """
    if scale in question.not_at:
        return {}
    try:
        return {label: key_of(job) for (label, _), job in question.recipes(scale, [0]).items()}
    except InputError as error:
        raise InputError(f"experiment '{question.name}': {error}") from error


def key_of(job: Job) -> str:
    """12 hex digits of the sha256 over a job of seed 0: what decides its numbers, and which text it reads by name.

    Unlike the name of a run's folder it is known without the text, which need not be prepared on this machine.
    """
    kind = str(job.model_dump(mode="json").get("task", "recipe"))
    text = json.dumps([job.folder({}), job.reads], sort_keys=True)
    return hashlib.sha256(f"{kind} {text}".encode()).hexdigest()[:12]
