"""The folders of runs and what is kept of them, named by what decides their numbers, so that experiments share runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sinkscope.errors import InputError
from sinkscope.experiments.jobs import Job
from sinkscope.experiments.observed import CURVES, FEWEST, RATES, Heads, Observed
from sinkscope.experiments.registration import registered
from sinkscope.files import write_json
from sinkscope.training import LOG, Run, TrainingDiverged, locked, read_record, read_rows


@dataclass
class RunStore:
    """A folder of runs, which processes and machines may share. Fingerprints are computed once per text."""

    path: Path
    _fingerprints: dict[str, dict[str, Any]] = field(default_factory=dict)

    def run(self, job: Job) -> Run:
        """The run of a job, whether it exists or not. Prepares a recipe's corpus if that is not done yet."""
        if job.reads not in self._fingerprints:
            self._fingerprints[job.reads] = job.fingerprint()
        return Run(self.path / job.folder(self._fingerprints[job.reads]))

    def make(self, job: Job, device: str = "auto") -> Observed:
        """Train the run of a job, or continue it, and observe it; a diverged run is a result like any other.

        Raises `Busy` if another process holds the run, and `InputError` for a run that cannot be trained.
        """
        run = self.run(job)
        # Observed below like any other run: its record says that it diverged.
        with suppress(TrainingDiverged):
            job.train(self.path, device)
        with locked(run.path, "observing"):
            return observed(run, type(job))

    def settled(self, job: Job) -> bool:
        """Whether the run of a job has finished or diverged, and was observed."""
        run = self.run(job)
        record = read_record(run.path)
        return record is not None and is_settled(record) and (run.path / job.observed).is_file()

    def progress(self, run: Run) -> dict[str, Any]:
        """The newest values in a run's log; empty before there are any."""
        try:
            rows = read_rows(run.path / LOG)
        except InputError:
            return {}
        return {name: value for row in rows[-12:] for name, value in row.items()}


def observed(run: Run, kind: type[Job]) -> Observed:
    """What is kept of a settled run of such a job, measured now if necessary.

    Raises `InputError` for a run that is not settled.
    """
    stored = _stored(run, kind)
    if stored is None:
        stored = _measured(run, kind)
        write_json(run.path / kind.observed, stored.to_dict())
    return stored


def known(run: Run, kind: type[Job]) -> Observed | None:
    """What is kept of a settled run; None without it, or if its layout is another one.

    Raises `InputError` for a damaged record.
    """
    return _stored(run, kind) if (run.path / kind.observed).is_file() and is_settled(run.record) else None


def is_settled(record: Mapping[str, Any]) -> bool:
    """Whether the run of a record has finished or diverged."""
    return record["status"] in ("finished", "diverged")


def _stored(run: Run, kind: type[Job]) -> Observed | None:
    try:
        stored = Observed.from_dict(json.loads((run.path / kind.observed).read_text(encoding="utf-8")))
        # The record names the text of runs that were observed before this was kept.
        return replace(stored, text=_text_of(run.record)) if stored.layout == kind.layout else None
    except (OSError, ValueError, AttributeError, InputError):
        return None  # absent or damaged: it is measured again


def _measured(run: Run, kind: type[Job]) -> Observed:
    record = run.record
    status = record["status"]
    if not is_settled(record):
        raise InputError(f"{run.path} is not settled: it is {status}")
    log = run.log
    rows = log.dropna(subset=["validation_loss"]) if "validation_loss" in log else log.iloc[:0]
    curves = [name for name in rows if name in CURVES or name.startswith("task/")]
    tokens = kind.rated_on(run)
    short = tokens is not None and tokens < FEWEST
    steps = [int(step) for step in rows["step"]] if len(rows) else []
    return Observed(
        run=run.path.name,
        status=status,
        seed=record["seed"],
        metrics=dict(kind.metrics(run)) if status == "finished" else {},
        steps=tuple(steps),
        curves={
            name: tuple(math.nan if short and name in RATES else float(value) for value in rows[name])
            for name in curves
        },
        seconds=record["seconds"],
        reason=record["reason"] or (f"no sink rate is read on {tokens} tokens: at least {FEWEST}" if short else ""),
        layout=kind.layout,
        started=record.get("started", ""),
        heads=_heads(run, steps),
        host=record.get("host", {}),
        registered=registered(run.path),
        text=_text_of(record),
    )


def _text_of(record: Mapping[str, Any]) -> str:
    """The sha256 of the text that a run was trained on; "" for tasks."""
    return str(record.get("data", {}).get("text_sha256", ""))


def _heads(run: Run, steps: Sequence[int]) -> Heads:
    """The numbers of heads in the log at these steps, NaN if unknown; empty if it keeps none."""
    kept = run.heads
    known = next((kept[step] for step in steps if step in kept), {})
    return {
        name: tuple(tuple(map(_number, kept.get(step, {}).get(name, [None] * len(row)))) for step in steps)
        for name, row in known.items()
    }


def _number(value: float | None) -> float:
    return math.nan if value is None else value
