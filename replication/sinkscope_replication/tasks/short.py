"""Tasks that train for seconds, in one go and without checkpoints: a run that was interrupted starts again."""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import NonNegativeInt, PositiveInt

from sinkscope.experiments import Metrics, Task
from sinkscope.files import write_text
from sinkscope.training import LOG, Record, Run, TrainingDiverged, host, locked, preserved_rng, settled


@dataclass(frozen=True)
class Fit:
    """What is trained: the `loss` on the examples of a step, and what the log keeps of an evaluation (`read`).

    `read` gives a `loss`, which the log calls the validation loss; all else is the task's own. `rate`: the share of the
    optimizer's learning rate at a step.
    """

    optimizer: torch.optim.Optimizer
    loss: Callable[[int], torch.Tensor]
    read: Callable[[], Mapping[str, float]]
    rate: Callable[[int], float] = lambda step: 1.0


class ShortTask(Task):
    """A task of `steps`, read every `eval_every` of them and at the end; its metrics are what was read last."""

    steps: PositiveInt
    eval_every: PositiveInt
    seed: NonNegativeInt = 0

    @property
    @abstractmethod
    def hash(self) -> str:
        """12 hex digits of the sha256 over all that decides a run's numbers."""

    @abstractmethod
    def fit(self) -> Fit:
        """A model with its starting values, and how it is trained and read."""

    def train(self, out: Path, device: str = "auto") -> Run:
        """Train the run, or return it if it is there already; on the processor, whatever the device.

        Raises `TrainingDiverged` when the loss stops being finite (also later, for a run that did), and `InputError`
        where another process holds the folder or it cannot be written.
        """
        folder = out / self.folder(self.fingerprint())
        if settled(folder):
            return Run(folder)
        with locked(folder):
            if not settled(folder):
                self._make(folder)
        return Run(folder)

    @classmethod
    def metrics(cls, run: Run) -> Metrics:
        """What `fit` read at the end of the run."""
        results = run.record["results"]
        yield "loss", results["validation_loss"]
        yield from ((name.removeprefix("task/"), results[name]) for name in results if name.startswith("task/"))

    def _make(self, folder: Path) -> None:
        record = Record(
            recipe=self.model_dump(mode="json"),
            hash=self.hash,
            seed=self.seed,
            data=self.fingerprint(),
            parameters={},
            host=host(torch.device("cpu")),
        )
        began = time.monotonic()
        rows: list[dict[str, Any]] = []
        try:
            with preserved_rng():
                self._train(record, rows)
        except TrainingDiverged as error:
            record.status, record.reason, record.step = "diverged", str(error), error.step
            raise
        else:
            record.status, record.step, record.results = "finished", self.steps, rows[-1]
        finally:
            record.seconds = round(time.monotonic() - began, 1)
            write_text(folder / LOG, "".join(json.dumps(row) + "\n" for row in rows))
            record.write(folder)

    def _train(self, record: Record, rows: list[dict[str, Any]]) -> None:
        fit = self.fit()
        trained = [parameter for group in fit.optimizer.param_groups for parameter in group["params"]]
        record.parameters = {"total": sum(parameter.numel() for parameter in trained)}
        schedule = torch.optim.lr_scheduler.LambdaLR(fit.optimizer, fit.rate)
        for step in range(self.steps + 1):
            if step % self.eval_every == 0 or step == self.steps:
                rows.append({"step": step} | {_column(name): value for name, value in fit.read().items()})
            if step == self.steps:
                return
            loss = fit.loss(step)
            if not torch.isfinite(loss):
                raise TrainingDiverged(f"training diverged: the loss became {loss.item()} at step {step}", step)
            fit.optimizer.zero_grad()
            loss.backward()
            fit.optimizer.step()
            schedule.step()


def _column(name: str) -> str:
    return "validation_loss" if name == "loss" else f"task/{name}"
