"""What changing a sink costs: measuring constants, passes under a change, and the trials, in forward passes.

A pretrained model, texts of 64 and 128 tokens, 8 at a time, CPU time of one thread. A trial is compared with as many
plain forward passes of the same shape as it makes; `origin` also measures the sink in each of them.

Run: python -m benchmarks.changing [--model NAME] [--save]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import sinkscope as ss
from benchmarks.folding import texts
from benchmarks.sides import Figure, at_most, in_turns, report
from sinkscope.interventions import FoldSink, Intervention, MeanSink, MuteSink, constants
from sinkscope.trials import origin_trial

BATCH, AFTER, BOUND = 8, 8, 1.2


def passes(model: Any, rows: Tensor, change: Intervention | None = None) -> Callable[[], object]:
    """A forward pass, under a change if there is one."""

    @torch.no_grad()
    def run() -> None:
        if change is None:
            model(rows, use_cache=False)
            return
        with change.applied(model):
            model(rows, use_cache=False)

    return run


def of_length(model: Any, rows: Tensor) -> list[Figure]:
    """Constants and changed passes against the plain pass."""
    known, length = constants(model, rows, (0,), AFTER), rows.shape[1]
    sides = {
        "forward": passes(model, rows),
        "constants": lambda: constants(model, rows, (0,), AFTER),
        "mute": passes(model, rows, MuteSink((0,), AFTER)),
        "mean": passes(model, rows, MeanSink((0,), AFTER, constants=known)),
        **{
            f"fold {form}": passes(model, rows, FoldSink((0,), AFTER, constants=known, form=form))
            for form in ("logit", "logit+value", "key+value")
        },
    }
    seconds = in_turns(sides, 3, time.thread_time)
    forward = seconds.pop("forward")
    return [at_most(f"T = {length}: {name} / forward", side, forward, BOUND) for name, side in seconds.items()]


def of_origin(model: Any, rows: Tensor) -> Figure:
    """The trial of the sink's origin against the passes that it makes."""
    shapes: list[torch.Size] = []

    def note(module: Any, args: Any, named: dict[str, Any]) -> None:
        given = named.get("input_ids", args[0] if args else None)
        shapes.append((named["inputs_embeds"] if given is None else given).shape[:2])

    def trial() -> None:
        origin_trial(model, rows[BATCH:], calibrate_on=rows[:BATCH], controls=1)

    with_hook = model.register_forward_pre_hook(note, with_kwargs=True)
    trial()
    with_hook.remove()
    plain = [passes(model, torch.zeros(shape, dtype=torch.long)) for shape in shapes]
    seconds = in_turns({"trial": trial, "plain": lambda: [run() for run in plain]}, 1, time.thread_time)
    what = f"origin, {len(shapes)} passes / as many forward passes"
    return at_most(what, seconds["trial"], seconds["plain"], BOUND)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--save", action="store_true", help="keep the figures in results/benchmarks")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    model: Any = ss.load(asked.model).eval()
    found = [figure for length in (64, 128) for figure in of_length(model, texts(asked.model, length, BATCH))]
    found.append(of_origin(model, texts(asked.model, 64, 2 * BATCH)))
    report(f"changing_{Path(asked.model).name}", found)


if __name__ == "__main__":
    main()
