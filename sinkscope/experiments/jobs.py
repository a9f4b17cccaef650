"""The jobs that questions vary: training the lab model on text, and the tasks that installed packages register."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import ValidationError
from torch import Tensor

from sinkscope.data import parse_tokenizer
from sinkscope.errors import unknown
from sinkscope.errors.invalid import ConfigPart, in_one_line
from sinkscope.experiments.observed import Metrics
from sinkscope.experiments.readings import readings
from sinkscope.model import LabForCausalLM
from sinkscope.registry import Registry
from sinkscope.training import LAB, SAID_BY_FINGERPRINT, Recipe, Run, changed, fingerprint, inputs_of, spread, train

SAMPLES = 100  # validation windows that are measured
LATE = 0.9  # the training loss is averaged over the rest of the steps
STARTS = {
    "sink_0/start": "sink/position_0",
    "sink_mass/start": "sink/mass",
    "norm_ratio/start": "sink/hidden_norm_ratio",
    "loss/start": "validation_loss",
}


class Job(ABC):
    """A frozen, validated configuration that decides a run.

    A sweep writes it as JSON (`jobs.as_json`) for the process that trains it; `job_from` reads it back by `kind`, the
    name under which `sinkscope.task` registers the class. `layout` is raised when `metrics`, or their definitions,
    change: runs whose folders exist are then observed again. `older`: earlier layouts whose metrics mean the same
    today; the record of such a run counts, except for metrics that it lacks. `observed`: the file in a run's folder
    that keeps the observations; a job that reads more of the same runs than another has its own file. `titles`: names
    of the job's own metrics and curves, in words with units.
    """

    kind: ClassVar[str] = "recipe"
    layout: ClassVar[int]
    older: ClassVar[tuple[int, ...]] = ()
    observed: ClassVar[str] = "observed.json"
    titles: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """What the job reads and so what decides its numbers: plain JSON, which the run's record keeps."""

    @abstractmethod
    def folder(self, fingerprint: Mapping[str, Any]) -> str:
        """The name of the run's folder, with a hash of everything that decides its numbers."""

    @abstractmethod
    def train(self, out: Path, device: str = "auto") -> Run:
        """Train the run under `out`, continue it, or return it if it is finished. Raises as `sinkscope.train`."""

    def compiled(self) -> Job:
        """The same job, trained under `torch.compile` if it can be: the same run, faster."""
        return self

    @classmethod
    @abstractmethod
    def metrics(cls, run: Run) -> Metrics:
        """The metrics of a finished run: `Observed.metrics`."""

    @classmethod
    def rated_on(cls, run: Run) -> int | None:
        """The number of tokens on which the log's sink rates were read; None if the task defines its own."""
        return None

    def parameters(self) -> int | None:
        """The number of parameters of its model, without building it; None if unknown."""
        return None

    @abstractmethod
    def model_dump(self, *, mode: str) -> dict[str, Any]:
        """The fields."""

    @property
    def reads(self) -> str:
        """Names the inputs of the fingerprint; it is computed once for jobs with equal `reads`.

        To be defined if different jobs read the same large text.
        """
        return json.dumps(self.model_dump(mode="json"), sort_keys=True)


class Task(ConfigPart, Job):
    """A synthetic task. `sizes`: its fields at each scale, where they differ from the defaults.

    Wrong fields raise `InputError`.
    """

    sizes: ClassVar[Mapping[str, Mapping[str, Any]]]

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise in_one_line(error, type(self), self.kind) from error

    @classmethod
    def at_scale(cls, scale: str, changes: Mapping[str, Any]) -> Task:
        """The task at a scale, with fields changed. Raises `InputError` for unknown scales and wrong fields."""
        return cls(**{**cls.size(scale), **changes})

    @classmethod
    def size(cls, scale: str) -> Mapping[str, Any]:
        """The fields of a scale. Raises `InputError` for a scale at which there is no such task."""
        if scale not in cls.sizes:
            raise unknown("scale", scale, cls.sizes)
        return cls.sizes[scale]


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


def training_windows(run: Run) -> dict[str, Tensor]:
    """The same of windows that it was trained on: of a share of the text where `data.train_share` says so."""
    return inputs_of(spread(LAB.data(Recipe(**run.record["recipe"])).train, SAMPLES))


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
        if column in log and len(values := log[column].dropna()):
            yield name, float(values.iloc[0])


TASKS: Registry[type[Job]] = Registry("task")


def task_named(name: str) -> type[Job]:
    """The class of a task by name. Raises `InputError` for an unknown one."""
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name]


def as_json(job: Job) -> dict[str, Any]:
    """A job as plain JSON, from which another process rebuilds it (`job_from`)."""
    return {"kind": job.kind, "fields": job.model_dump(mode="json")}


def job_from(data: Mapping[str, Any]) -> Job:
    """A job from the result of `as_json`. Raises `InputError` for unknown tasks and wrong fields."""
    kind = LabTraining if data["kind"] == LabTraining.kind else task_named(data["kind"])
    return kind(**data["fields"])
