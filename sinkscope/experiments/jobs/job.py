"""What a question varies and a sweep trains: any job, and synthetic tasks."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ValidationError

from sinkscope.errors import unknown
from sinkscope.experiments.observed import Metrics
from sinkscope.invalid import ConfigPart, in_one_line
from sinkscope.training import Run


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
        """What the job reads and what thereby decides its numbers: plain JSON, which the run's record keeps."""

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
