"""A run of the minimal Bigram-Backcopy model: seconds long, so it is made at one go."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from sinkscope.data import seeded
from sinkscope.experiments.tasks.at_once import Rows, at_once, at_the_end, finite, logged
from sinkscope.experiments.tasks.minimal import TASK, Minimal, MinimalModel, Reading
from sinkscope.experiments.tasks.reading import Named
from sinkscope.experiments.tasks.sequences import Sequences
from sinkscope.training import Record, Run

VALIDATION = 256  # sequences


def train(job: Minimal, out: Path) -> Run:
    """Train the run, or return it if it is there already: `at_once`, which says what is raised."""
    return at_once(job, out, _train)


def metrics(run: Run) -> Named:
    """What `Reading.read` gives at the end of a finished run."""
    yield from at_the_end(run).items()


def _train(job: Minimal, record: Record, rows: Rows) -> None:
    law = job.law
    start = torch.randn(law.tokens, generator=seeded(TASK, job.seed))
    model = MinimalModel(law, job.value_start * start)
    if job.frozen != "nothing":
        model.get_parameter(job.frozen).requires_grad_(False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    record.parameters = {"total": sum(parameter.numel() for parameter in trained)}
    optimizer = torch.optim.AdamW(trained, lr=job.lr, weight_decay=1e-4, betas=(0.9, 0.99))
    reading = Reading(law, _batch(job.sequences(VALIDATION, "validation", 0), range(VALIDATION)))
    drawn = job.sequences(job.steps * job.batch_size, "training", job.seed)
    for step in range(job.steps + 1):
        if step % job.eval_every == 0 or step == job.steps:
            rows.append(logged(step, reading.read(model)))
        if step == job.steps:
            return
        ids = _batch(drawn, range(step * job.batch_size, (step + 1) * job.batch_size))
        optimizer.zero_grad()
        finite(F.cross_entropy(model(ids)[0].transpose(1, 2), ids[:, 2:]), step).backward()
        optimizer.step()


def _batch(sequences: Sequences, items: range) -> Tensor:
    return torch.stack([sequences[item]["input_ids"] for item in items])
