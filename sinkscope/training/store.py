"""A run's folder: who may enter it, and in which state it is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from sinkscope.errors import InputError
from sinkscope.files import sweep, write_json
from sinkscope.training.recipe import Recipe
from sinkscope.training.record import read_record

RECIPE = "recipe.json"
LOCK = "run.lock"


class TrainingDiverged(InputError):
    """The loss or the gradient stopped being a finite number, at step `step`."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


class Busy(InputError):
    """Another process holds the run's folder."""


def settled(folder: Path) -> bool:
    """Whether a run is finished. Raises `TrainingDiverged` for one that diverged: it would again, the same way."""
    record = read_record(folder) or {"status": "absent"}
    if record["status"] == "diverged":
        raise TrainingDiverged(f"{folder}: {record['reason']} (remove the folder to train it again)", record["step"])
    return record["status"] == "finished"


@contextmanager
def alone(folder: Path, doing: str = "training") -> Iterator[None]:
    """Hold the lock of a folder, cleared of what a killed process left there.

    Raises `InputError` if another process holds it (`doing` says what for), or if the folder cannot be written.
    """
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise Busy(f"another process is {doing} {folder}") from error
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror or error}") from error
    try:
        sweep(folder)
        yield
    finally:
        lock.release()


def enter(folder: Path, recipe: Recipe, fingerprint: Mapping[str, Any], *, resume: bool) -> dict[str, Any]:
    """Write the recipe into a new run's folder, or check that an unfinished run is this one; return its record so far.

    Raises `InputError` for another configuration, for an unfinished run without `resume`, and for a damaged recipe.
    """
    if not (folder / RECIPE).exists():
        write_json(folder / RECIPE, recipe.model_dump(mode="json"))
        return {}
    if _stored(folder / RECIPE).hash(fingerprint) != recipe.hash(fingerprint):
        raise InputError(f"{folder} holds a run of another configuration: remove it or choose another --out")
    if not resume:
        raise InputError(f"{folder} holds an unfinished run: pass --resume to go on with it")
    return read_record(folder) or {}


def _stored(path: Path) -> Recipe:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}; remove the folder to train this run again") from error
    if not isinstance(fields, dict):
        raise InputError(f"{path} holds no recipe; remove the folder to train this run again")
    return Recipe(**fields)
