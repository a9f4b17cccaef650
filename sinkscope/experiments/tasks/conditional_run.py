"""A run of the trigger-conditional task: seconds long, so it is made at one go."""

from __future__ import annotations

from pathlib import Path

import torch

from sinkscope.experiments.tasks.at_once import Rows, at_once, at_the_end, finite, logged
from sinkscope.experiments.tasks.conditional import Examples, OneLayer, TriggerConditional
from sinkscope.experiments.tasks.reading import Named
from sinkscope.training import Record, Run

VALIDATION = 1024  # sequences
SMALLEST = 1e-6  # a row of less weight looks nowhere


def train(job: TriggerConditional, out: Path) -> Run:
    """Train the run, or return it if it is there already: `at_once`, which says what is raised."""
    return at_once(job, out, _train)


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
    yield from at_the_end(run).items()


def _train(job: TriggerConditional, record: Record, rows: Rows) -> None:
    torch.manual_seed(job.seed)
    model = OneLayer(job)
    record.parameters = {"total": sum(parameter.numel() for parameter in model.parameters())}
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / job.steps)
    validation = Examples(job, VALIDATION, "validation")
    for step in range(job.steps + 1):
        if step % job.eval_every == 0 or step == job.steps:
            rows.append(logged(step, read(model, validation)))
        if step == job.steps:
            return
        examples = Examples(job, job.batch_size, "training", job.seed, step)
        loss = torch.stack(examples.errors(model(examples.inputs)[0])).sum()
        optimizer.zero_grad()
        finite(loss, step).backward()
        optimizer.step()
        schedule.step()
