"""A run's folder: its contents, its state, and its lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from sinkscope.errors import InputError
from sinkscope.files import write_json
from sinkscope.model import load, load_tokenizer
from sinkscope.model.checkpoints import MODEL
from sinkscope.training.recipe import Recipe
from sinkscope.training.run.log import HEADS, LOG, read_rows
from sinkscope.training.run.record import read_object, read_record

RECIPE = "recipe.json"
PROVENANCE = "provenance.json"


class TrainingDiverged(InputError):
    """The loss or the gradient stopped being a finite number, at step `step`."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


def settled(folder: Path) -> bool:
    """Whether a run is finished. Raises `TrainingDiverged` for one that diverged, which would diverge again."""
    record = read_record(folder) or {"status": "absent"}
    if record["status"] == "diverged":
        raise TrainingDiverged(f"{folder}: {record['reason']} (remove the folder to train it again)", record["step"])
    return record["status"] == "finished"


def open_run(folder: Path, recipe: Recipe, fingerprint: Mapping[str, Any], *, resume: bool) -> dict[str, Any]:
    """Write the recipe to a new run's folder, or check that an unfinished run is of this recipe; return its record.

    Raises `InputError` for another configuration, for an unfinished run without `resume`, and for a damaged recipe.
    """
    if not (folder / RECIPE).exists():
        write_json(folder / RECIPE, recipe.model_dump(mode="json"))
        return {}
    if Recipe(**read_object(folder / RECIPE, "recipe")).hash(fingerprint) != recipe.hash(fingerprint):
        raise InputError(f"{folder} holds a run of another configuration: remove it or choose another folder")
    if not resume:
        raise InputError(f"{folder} holds an unfinished run: pass --resume, or resume=True, to continue it")
    return read_record(folder) or {}


@dataclass(frozen=True)
class Run:
    """A run's folder, finished or not. Its contents are read on first use."""

    path: Path

    @cached_property
    def record(self) -> dict[str, Any]:
        """Configuration, seed, versions, data fingerprint, status, results. Raises `InputError` if unreadable."""
        record = read_record(self.path)
        if record is None:
            raise InputError(f"{self.path} is not a run: it holds no record")
        return record

    @cached_property
    def log(self) -> pd.DataFrame:
        """The metric log, one row per logged step; NaN for a metric that was not measured at that step.

        Numbers per head are in `heads`.
        """
        rows = [{name: value for name, value in row.items() if name != HEADS} for row in read_rows(self.path / LOG)]
        return pd.DataFrame(rows)

    @cached_property
    def heads(self) -> dict[int, dict[str, list[float | None]]]:
        """Numbers per head and depth, by step and name: see `HeadNumbers`. Empty for runs that kept none."""
        return {row["step"]: row[HEADS] for row in read_rows(self.path / LOG) if row.get(HEADS)}

    @cached_property
    def model(self) -> PreTrainedModel:
        """The trained model. Raises `InputError` if the run is not finished."""
        return load(self._finished())

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer. Raises `InputError` if the run is not finished."""
        return load_tokenizer(self._finished())

    def _finished(self) -> str:
        if self.record["status"] != "finished":
            raise InputError(f"{self.path} has no model: the run is {self.record['status']}")
        return str(self.path / MODEL)
