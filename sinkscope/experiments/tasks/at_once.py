"""Runs that take seconds, and so are made at one go: one that was interrupted starts again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch

from sinkscope.files import write_text
from sinkscope.training import LOG, Record, Run, TrainingDiverged, host, locked, preserved_rng, settled

Rows = list[dict[str, Any]]


@runtime_checkable
class Short(Protocol):
    """A job that is made at one go."""

    seed: int
    steps: int

    @property
    def hash(self) -> str: ...

    def folder(self, fingerprint: Mapping[str, Any]) -> str: ...

    def fingerprint(self) -> dict[str, Any]: ...

    def model_dump(self, *, mode: str) -> dict[str, Any]: ...


J = TypeVar("J", bound=Short)


def at_once(job: J, out: Path, train: Callable[[J, Record, Rows], None]) -> Run:
    """Train the run, or return it if it is there already; always on the processor.

    `train` appends the rows of the log, the last of which become the results. Raises `TrainingDiverged` when the loss
    stops being finite (also later, for a run that did), and `InputError` where another process holds the folder or it
    cannot be written.
    """
    folder = out / job.folder(job.fingerprint())
    if settled(folder):
        return Run(folder)
    with locked(folder):
        if not settled(folder):
            _make(job, folder, train)
    return Run(folder)


def finite(loss: torch.Tensor, step: int) -> torch.Tensor:
    """The loss of a step. Raises `TrainingDiverged` for one that is not finite."""
    if not torch.isfinite(loss):
        raise TrainingDiverged(f"training diverged: the loss became {loss.item()} at step {step}", step)
    return loss


def logged(step: int, found: Mapping[str, float]) -> dict[str, Any]:
    """A row of the log: the loss is one of validation, all else is the task's own."""
    return {"step": step} | {"validation_loss" if name == "loss" else f"task/{name}": v for name, v in found.items()}


def at_the_end(run: Run) -> dict[str, float]:
    """What the last row of a finished run's log told, by the names that `logged` was given."""
    results = run.record["results"]
    own = {name.removeprefix("task/"): value for name, value in results.items() if name.startswith("task/")}
    return {"loss": results["validation_loss"], **own}


def _make(job: J, folder: Path, train: Callable[[J, Record, Rows], None]) -> None:
    record = Record(
        recipe=job.model_dump(mode="json"),
        hash=job.hash,
        seed=job.seed,
        data=job.fingerprint(),
        parameters={},
        host=host(torch.device("cpu")),
    )
    began = time.monotonic()
    rows: Rows = []
    try:
        with preserved_rng():
            train(job, record, rows)
    except TrainingDiverged as error:
        record.status, record.reason, record.step = "diverged", str(error), error.step
        raise
    else:
        record.status, record.step, record.results = "finished", job.steps, rows[-1]
    finally:
        record.seconds = round(time.monotonic() - began, 1)
        write_text(folder / LOG, "".join(json.dumps(row) + "\n" for row in rows))
        record.write(folder)
