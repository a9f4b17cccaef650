"""A task: no training at all, a record that says what was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch

import sinkscope as ss
from sinkscope.experiments import Metrics, Task
from sinkscope.training import Record, Run, host


@ss.task
class Counting(Task):
    """A run whose only metric is `number` + `seed`."""

    kind: ClassVar[str] = "toy-counting"
    layout: ClassVar[int] = 1
    titles: ClassVar[Mapping[str, str]] = {"slot": "slots that were counted"}
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {"nano": {}}

    number: int = 3
    seed: int = 0

    def fingerprint(self) -> dict[str, Any]:
        return {"task": self.kind}

    def folder(self, fingerprint: Mapping[str, Any]) -> str:
        return f"counting-{self.number}-{self.seed}"

    def train(self, out: Path, device: str = "auto") -> Run:
        run = Run(out / self.folder({}))
        record = Record(
            recipe=self.model_dump(mode="json"),
            hash="",
            seed=self.seed,
            data=self.fingerprint(),
            parameters={},
            host=host(torch.device("cpu")),
        )
        record.status, record.results = "finished", {"count": self.number + self.seed}
        record.write(run.path)
        (run.path / "log.jsonl").write_text("")
        return run

    @classmethod
    def metrics(cls, run: Run) -> Metrics:
        yield "count", float(run.record["results"]["count"])
