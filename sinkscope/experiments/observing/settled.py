"""From a settled run to what an experiment knows of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd
from torch import Tensor

from sinkscope.errors import InputError
from sinkscope.experiments.observed import CURVES, Observed
from sinkscope.experiments.observing.other_texts import other_texts
from sinkscope.experiments.observing.readings import readings
from sinkscope.files import write_json
from sinkscope.training import LAB, Recipe, Run, inputs_of, spread

if TYPE_CHECKING:
    from sinkscope.experiments.sweep.jobs import JobKind

OBSERVED = "observed.json"
SAMPLES = 100
LATE = 0.9  # the training loss is averaged over the rest of the steps
STARTS = {
    "sink_0/start": "sink/position_0",
    "norm_ratio/start": "sink/hidden_norm_ratio",
    "loss/start": "validation_loss",
}


def observed(run: Run) -> Observed:
    """What is kept of a run, measured now if it was not before.

    Finished runs are measured on the first 64 tokens of up to 100 validation windows, as they were trained, and under
    other readings (see `Observed`). Raises `InputError` for a run that is not settled.
    """
    known = _stored(run)
    if known is not None:
        return known
    found = _from_run(run)
    write_json(run.path / OBSERVED, found.to_dict())
    return found


def is_observed(run: Run) -> bool:
    """Whether what is kept of a run is there, whole, and made as it would be made now."""
    return _stored(run) is not None


def _stored(run: Run) -> Observed | None:
    try:
        known = Observed.from_dict(json.loads((run.path / OBSERVED).read_text(encoding="utf-8")))
        return known if known.layout == _kind(run).layout else None
    except (OSError, ValueError, AttributeError, InputError):
        return None  # absent or damaged: it can be made again


def _from_run(run: Run) -> Observed:
    record = run.record
    status = record["status"]
    if status not in ("finished", "diverged"):
        raise InputError(f"{run.path} is not settled: it is {status}")
    log = run.log
    rows = log.dropna(subset=["validation_loss"]) if "validation_loss" in log else log.iloc[:0]
    return Observed(
        run=run.path.name,
        status=status,
        seed=record["seed"],
        metrics=dict(_kind(run).metrics(run)) if status == "finished" else {},
        steps=tuple(int(step) for step in rows["step"]) if len(rows) else (),
        curves={name: tuple(float(value) for value in rows[name]) for name in rows if _is_curve(name)},
        seconds=record["seconds"],
        reason=record["reason"] or "",
        layout=_kind(run).layout,
    )


def _kind(run: Run) -> JobKind:
    from sinkscope.experiments.sweep.jobs import kind_of_run  # which knows this file as one kind's

    return kind_of_run(run)


def _is_curve(name: str) -> bool:
    return name in CURVES or name.startswith("task/")


def lab_metrics(run: Run) -> Iterator[tuple[str, float]]:
    """What is known of a finished run of a recipe: all metrics of `Observed`."""
    yield from training_metrics(run)
    recipe = Recipe(**run.record["recipe"])
    windows = _validation(recipe)
    yield from readings(run.model, windows)
    yield from other_texts(run.model, run.tokenizer, recipe.data, windows)


def training_metrics(run: Run) -> Iterator[tuple[str, float]]:
    """What its log tells of a run: the metrics of `Observed` that are of training."""
    yield from _losses(run.log, run.record["results"].get("validation_loss"))
    for name, column in STARTS.items():
        if column in run.log and len(known := run.log[column].dropna()):
            yield name, float(known.iloc[0])


def _losses(log: pd.DataFrame, validation: float | None) -> Iterator[tuple[str, float]]:
    """Validation loss at the end, training loss over the last tenth of the steps, and their difference."""
    if validation is not None:
        yield "loss", float(validation)
    if "loss" not in log or not len(rows := log.dropna(subset=["loss"])):
        return
    train = float(rows[rows["step"] > LATE * rows["step"].iloc[-1]]["loss"].mean())
    yield "train_loss", train
    if validation is not None:
        yield "gap", float(validation) - train


def _validation(recipe: Recipe) -> dict[str, Tensor]:
    return inputs_of(spread(LAB.data(recipe).validation, SAMPLES))
