"""Which variations of which questions are the same run: told without torch, from a committed table.

A run's folder is named by a hash of its text, so its name is known only where that text was prepared. What is compared
here is the job without its seed: variations with one identity have, seed by seed, one run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sinkscope.errors import InputError
from sinkscope.experiments.question import SCALES, Question
from sinkscope.experiments.questions import QUESTIONS

TABLE = Path(__file__).parent / "identities.json"  # written by `python -m tools.pages.identities`


@dataclass(frozen=True)
class Identity:
    """A variation's job without its seed. `kind`: recipe, or the task's name; `layout`, `older`, `steps`: the job's."""

    key: str
    kind: str
    layout: int
    steps: int
    older: tuple[int, ...] = ()

    def reads(self, layout: int) -> bool:
        """Whether what was kept in a layout means what it means today."""
        return layout == self.layout or layout in self.older


def identities(question: Question, scale: str) -> dict[str, Identity]:
    """The identity of each variation by its label, from the table or, for a user's own question, from its jobs.

    Empty at a scale at which the question cannot be asked. Raises `InputError` for wrong recipes.
    """
    if scale in question.not_at:
        return {}
    known = _table().get(scale, {}).get(question.name)
    if known is None or QUESTIONS.get(question.name) is not question:
        return made(question, scale)
    return {label: _read(entry) for label, entry in known.items()}


def is_synthetic(question: Question) -> bool:
    """Whether a question is asked of a synthetic task, where others train on text."""
    return any(one.kind != "recipe" for scale in SCALES for one in identities(question, scale).values())


def _read(entry: Sequence[Any]) -> Identity:
    key, kind, layout, steps, older = entry
    return Identity(key, kind, layout, steps, tuple(older))


def made(question: Question, scale: str) -> dict[str, Identity]:
    """The same from the question's jobs, which need torch."""
    if scale in question.not_at:
        return {}
    try:
        return {label: _of(job) for (label, _), job in question.recipes(scale, 1).items()}
    except InputError as error:
        raise InputError(f"experiment '{question.name}': {error}") from error


def table() -> dict[str, dict[str, dict[str, list[Any]]]]:
    """What the committed table should hold: by scale, question and label."""
    return {
        scale: {
            name: {label: list(vars(one).values()) for label, one in made(question, scale).items()}
            for name, question in QUESTIONS.own.items()
            if scale not in question.not_at
        }
        for scale in SCALES
    }


def _of(job: Any) -> Identity:
    text = json.dumps([job.folder({}), job.reads], sort_keys=True)
    fields = job.model_dump(mode="json")
    kind = str(fields.get("task", "recipe"))
    key = hashlib.sha256(f"{kind} {text}".encode()).hexdigest()[:12]
    return Identity(key, kind, job.layout, _steps(fields), job.older)


def _steps(fields: Mapping[str, Any]) -> int:
    """The steps of a job, which the task of back-copying has in its recipe."""
    own = fields.get("steps")
    return int(own if own is not None else fields.get("recipe", {}).get("steps", 0))


@cache
def _table() -> dict[str, Any]:
    return json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.is_file() else {}
