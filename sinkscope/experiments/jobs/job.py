"""What a question varies and a sweep makes runs of: any job, and a synthetic task."""

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
    """A frozen, validated configuration that decides a run, and what is done with it.

    A sweep writes it as JSON (`jobs.as_json`) for the process that trains it; `job_from` reads it back by `kind`, the
    name that `sinkscope.task` registers the class under. `layout` is raised when `metrics`, or how they are made,
    change: what was kept of older runs is then made again, where their folders are there. `older`: earlier layouts
    whose metrics mean what they mean today, though there are more now; the record of such a run counts, except for what
    it lacks. `observed`: the file in a run's folder with what was observed of it; a job that reads more of the same
    runs than another has a file of its own. `titles`: metrics and curves of its own in words with their units.
    """

    kind: ClassVar[str] = "recipe"
    layout: ClassVar[int]
    older: ClassVar[tuple[int, ...]] = ()
    observed: ClassVar[str] = "observed.json"
    titles: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """What the job reads, as far as that decides its numbers: plain JSON, which the run's record keeps."""

    @abstractmethod
    def folder(self, fingerprint: Mapping[str, Any]) -> str:
        """The name of the run's folder, with a hash of all that decides its numbers."""

    @abstractmethod
    def train(self, out: Path, device: str = "auto") -> Run:
        """Train the run under `out`, go on with it, or return it if it is finished. Raises as `sinkscope.train`."""

    def compiled(self) -> Job:
        """The same job, trained under `torch.compile` where that is known of it: the same run, faster."""
        return self

    @classmethod
    @abstractmethod
    def metrics(cls, run: Run) -> Metrics:
        """What is known of a finished run of such a job: `Observed.metrics`."""

    @classmethod
    def rated_on(cls, run: Run) -> int | None:
        """On how many tokens the sink rates of the run's log were read; None where that is the task's own matter."""
        return None

    def parameters(self) -> int | None:
        """How many parameters its model has, without building it; None where nobody knows before."""
        return None

    @abstractmethod
    def model_dump(self, *, mode: str) -> dict[str, Any]:
        """The fields."""

    @property
    def reads(self) -> str:
        """Names what the fingerprint is made from: of jobs for which it is equal, one is asked for a fingerprint.

        To be defined where jobs that differ read the same large text.
        """
        return json.dumps(self.model_dump(mode="json"), sort_keys=True)


class Task(ConfigPart, Job):
    """A synthetic task. `sizes`: the fields that make it up at each scale, where they are not the defaults.

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
