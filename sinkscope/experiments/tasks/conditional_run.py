"""A run of the trigger-conditional task: seconds long, so it is made at one go."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from sinkscope.experiments.tasks.conditional import Examples, OneLayer, TriggerConditional
from sinkscope.experiments.tasks.reading import Named
from sinkscope.files import write_text
from sinkscope.training import Run, TrainingDiverged
from sinkscope.training.log import LOG
from sinkscope.training.record import Record, host
from sinkscope.training.store import alone, settled
from sinkscope.training.undisturbed import undisturbed

VALIDATION = 1024  # sequences
SMALLEST = 1e-6  # a row of less weight looks nowhere


def train(job: TriggerConditional, out: Path) -> Run:
    """Train the run, or return it if it is there already; always on the processor.

    One that was interrupted starts again. Raises `TrainingDiverged` when the loss stops being finite (also later, for a
    run that did), and `InputError` where another process holds the folder or it cannot be written.
    """
    folder = out / job.folder(job.fingerprint())
    if settled(folder):
        return Run(folder)
    with alone(folder):
        if not settled(folder):
            _make(job, folder)
    return Run(folder)


def read(model: OneLayer, examples: Examples) -> dict[str, float]:
    """`loss`: what is trained on, `unexplained` + `output`²; `unexplained`: mean squared error at triggers over the
    targets' mean square; `output`: root mean square of what is given elsewhere, over that of the targets.

    Of queries elsewhere: `first`: mean weight on the first token, as it is; `first_share`: its share of all weight, 0
    in a row that has none; `slot`: weight on slots; `total`: on all tokens, and `total/triggers` that of triggers.
    """
    with torch.no_grad():
        outputs, weights, slots = model(examples.inputs, path="reference")
    assert weights is not None
    assert slots is not None
    at_triggers, elsewhere = examples.errors(outputs)
    tokens, slot, others = weights[:, 0], slots[:, 0].sum(-1), examples.others
    total = tokens.sum(-1)
    everything = total + slot
    share = torch.where(everything > SMALLEST, tokens[..., 0] / everything.clamp(min=SMALLEST), 0.0)
    found = {
        "loss": at_triggers + elsewhere,
        "unexplained": at_triggers,
        "output": elsewhere.sqrt(),
        "first": tokens[..., 0][others].mean(),
        "first_share": share[others].mean(),
        "slot": slot[others].mean(),
        "total": total[others].mean(),
        "total/triggers": total[examples.triggers].mean(),
    }
    return {name: float(value) for name, value in found.items()}


def metrics(run: Run) -> Named:
    """What `read` gives at the end of a finished run."""
    results = run.record["results"]
    yield "loss", results["validation_loss"]
    yield from ((name.removeprefix("task/"), value) for name, value in results.items() if name.startswith("task/"))


def _logged(found: Mapping[str, float]) -> dict[str, float]:
    return {"validation_loss" if name == "loss" else f"task/{name}": value for name, value in found.items()}


def _make(job: TriggerConditional, folder: Path) -> None:
    record = Record(
        recipe=job.model_dump(mode="json"),
        hash=job.hash,
        seed=job.seed,
        data=job.fingerprint(),
        parameters={},
        host=host(torch.device("cpu")),
    )
    began = time.monotonic()
    rows: list[dict[str, Any]] = []
    try:
        with undisturbed():
            _train(job, record, rows)
    except TrainingDiverged as error:
        record.status, record.reason, record.step = "diverged", str(error), error.step
        raise
    else:
        record.status, record.step, record.results = "finished", job.steps, rows[-1]
    finally:
        record.seconds = round(time.monotonic() - began, 1)
        write_text(folder / LOG, "".join(json.dumps(row) + "\n" for row in rows))
        record.write(folder)


def _train(job: TriggerConditional, record: Record, rows: list[dict[str, Any]]) -> None:
    torch.manual_seed(job.seed)
    model = OneLayer(job)
    record.parameters = {"total": sum(parameter.numel() for parameter in model.parameters())}
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / job.steps)
    validation = Examples(job, VALIDATION, "validation")
    for step in range(job.steps + 1):
        if step % job.eval_every == 0 or step == job.steps:
            rows.append({"step": step} | _logged(read(model, validation)))
        if step == job.steps:
            return
        examples = Examples(job, job.batch_size, "training", job.seed, step)
        loss = torch.stack(examples.errors(model(examples.inputs)[0])).sum()
        if not torch.isfinite(loss):
            raise TrainingDiverged(f"training diverged: the loss became {loss.item()} at step {step}", step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
