"""Seconds a token takes through each cache: the arms take turns, so that the machine's mood cancels."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor, nn

from sinkscope.errors import InputError
from sinkscope.hooks import device_of
from sinkscope.trials.arm import Arm
from sinkscope.trials.feeding import feeding

WARM_UP = 2  # tokens of each turn that are not timed


@dataclass(frozen=True)
class Speed:
    """Medians over rounds. `prefill`: seconds for the context; `step`: seconds for one token after it."""

    prefill: float
    step: float


def clock_of(model: nn.Module) -> str:
    """Which clock is read: the thread's own time where one thread of a CPU computes, which others cannot disturb."""
    return "thread" if device_of(model).type == "cpu" and torch.get_num_threads() == 1 else "wall"


def speeds(
    model: nn.Module,
    ids: Int[Tensor, "row position"],
    arms: Sequence[Arm],
    *,
    context: int,
    rounds: int = 3,
) -> dict[str, Speed]:
    """How long each arm takes on the same texts, after one round that does not count.

    Each turn of an arm reads the context, as far as its cache does not hold it from before, then the rest a token at a
    time.

    Args:
        model: The model.
        ids: The texts, read as one batch.
        arms: Their caches are timed.
        context: Tokens of each text that are read at once.
        rounds: Turns of each arm that count; the result is their median.

    Raises `InputError` if fewer than three tokens are left after the context.
    """
    if not 0 < context < ids.shape[1] - WARM_UP:
        raise InputError(f"timing needs {WARM_UP + 1} tokens after the context: give longer texts, or no rounds")
    clock = time.thread_time if clock_of(model) == "thread" else time.perf_counter
    prefill: dict[str, list[float]] = {arm.name: [] for arm in arms}
    step: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for _ in range(rounds + 1):
        for arm in arms:
            with feeding(model, arm, ids) as feed:
                marks = [_now(model, clock)]
                feed.read(ids[:, feed.seen : context])
                marks.append(_now(model, clock))
                for place in range(context, ids.shape[1]):
                    if place == context + WARM_UP:
                        marks.append(_now(model, clock))
                    feed.read(ids[:, place : place + 1])
                marks.append(_now(model, clock))
            prefill[arm.name].append(marks[1] - marks[0])
            step[arm.name].append((marks[3] - marks[2]) / (ids.shape[1] - context - WARM_UP))
    return {
        arm.name: Speed(statistics.median(prefill[arm.name][1:]), statistics.median(step[arm.name][1:])) for arm in arms
    }


def _now(model: nn.Module, clock: object) -> float:
    if device_of(model).type == "cuda":
        # Kernels run asynchronously: without waiting, only their launch would be timed.
        torch.cuda.synchronize()
    assert callable(clock)
    return float(clock())
