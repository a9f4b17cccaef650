"""A recipe as a job: training the lab model on text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from sinkscope.data import parse_tokenizer
from sinkscope.experiments.jobs.job import Job
from sinkscope.experiments.observed import Metrics
from sinkscope.experiments.readings import readings
from sinkscope.model import LabForCausalLM
from sinkscope.training import LAB, SAID_BY_FINGERPRINT, Recipe, Run, changed, fingerprint, inputs_of, spread, train

SAMPLES = 100  # validation windows that are measured
LATE = 0.9  # the training loss is averaged over the rest of the steps
STARTS = {
    "sink_0/start": "sink/position_0",
    "sink_mass/start": "sink/mass",
    "norm_ratio/start": "sink/hidden_norm_ratio",
    "loss/start": "validation_loss",
}


class LabTraining(Recipe, Job):
    """A recipe, and the metrics of the model that it trains."""

    layout: ClassVar[int] = 8
    older: ClassVar[tuple[int, ...]] = (4, 5, 6, 7)  # with fewer metrics

    @classmethod
    def changed(cls, recipe: str, changes: Mapping[str, Any]) -> LabTraining:
        """The recipe of that name with dotted fields changed. Raises `InputError` as `load_recipe` does."""
        return cls.model_construct(**dict(changed(recipe, changes)))  # validated already

    @property
    def reads(self) -> str:
        """The fields that name the text and the initial weights."""
        data = self.data.model_dump(mode="json")
        return json.dumps([self.start_from, {name: data[name] for name in sorted(SAID_BY_FINGERPRINT)}])

    def fingerprint(self) -> dict[str, Any]:
        """Text, tokens and initial weights. Prepares the corpus if that is not done yet."""
        return fingerprint(self)

    def parameters(self) -> int:
        """The number of parameters; with the tokenizer's vocabulary if its size is known."""
        size = self.model.get("vocab_size") or parse_tokenizer(self.data.tokenizer)
        config = self._lab_config(**({} if size is None else {"vocab_size": size}))
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in LabForCausalLM(config).parameters())

    def compiled(self) -> LabTraining:
        return self.model_copy(update={"compile": True})

    def train(self, out: Path, device: str = "auto") -> Run:
        return train(self, out, resume=True, progress=False, device=device)

    @classmethod
    def rated_on(cls, run: Run) -> int:
        """How many first tokens of validation windows training measures."""
        return min(LAB.sink_tokens, Recipe(**run.record["recipe"]).context)

    @classmethod
    def metrics(cls, run: Run) -> Metrics:
        """All metrics of `Observed`: on the first 64 tokens of up to 100 validation windows, masked as in training, and
        on other inputs."""
        yield from training_metrics(run)
        yield from readings(run.model, validation_windows(run))


def validation_windows(run: Run) -> dict[str, Tensor]:
    """Model inputs by name: up to 100 validation windows of a run, spread over its text."""
    return inputs_of(spread(LAB.data(Recipe(**run.record["recipe"])).validation, SAMPLES))


def training_metrics(run: Run) -> Metrics:
    """The metrics of `Observed` that are about training, from the run's log."""
    log, validation = run.log, run.record["results"].get("validation_loss")
    if validation is not None:
        yield "loss", float(validation)
    if "loss" in log and len(rows := log.dropna(subset=["loss"])):
        train_loss = float(rows[rows["step"] > LATE * rows["step"].iloc[-1]]["loss"].mean())
        yield "train_loss", train_loss
        if validation is not None:
            yield "gap", float(validation) - train_loss
    for name, column in STARTS.items():
        if column in log and len(known := log[column].dropna()):
            yield name, float(known.iloc[0])
