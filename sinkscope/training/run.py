"""A training run as it lies in its folder."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from sinkscope.errors import InputError
from sinkscope.model import load, load_tokenizer
from sinkscope.training.log import LOG, read_rows
from sinkscope.training.record import read_record

MODEL = "model"
PROVENANCE = "provenance.json"
CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class Run:
    """A run's folder, finished or not. What is in it is read when it is first asked for."""

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
        """The metric log, a row per logged step; NaN where a metric was not measured at that step."""
        return pd.DataFrame(read_rows(self.path / LOG))

    @cached_property
    def model(self) -> PreTrainedModel:
        """The trained model. Raises `InputError` if the run has none yet."""
        return load(self._finished())

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer. Raises `InputError` if the run has none yet."""
        return load_tokenizer(self._finished())

    def _finished(self) -> str:
        if self.record["status"] != "finished":
            raise InputError(f"{self.path} has no model: the run is {self.record['status']}")
        return str(self.path / MODEL)
