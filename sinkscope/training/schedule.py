"""Learning rate schedules as values. `transformers.get_scheduler` computes constant and cosine ones.

With t = 0, 1, … the number of an update, the rate during warm-up is lr · t / warmup in all of them.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal, cast

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_scheduler

from sinkscope.errors.invalid import ConfigPart


class Constant(ConfigPart):
    """Warm-up, then lr."""

    kind: Literal["constant"] = "constant"
    warmup: NonNegativeInt = 100


class Cosine(ConfigPart):
    """Warm-up, then half a cosine: min_lr + (lr − min_lr) · (1 + cos(π · (t − warmup) / (steps − warmup))) / 2."""

    kind: Literal["cosine"] = "cosine"
    warmup: NonNegativeInt = 100
    min_lr: NonNegativeFloat = 0.0


class LinearDecay(ConfigPart):
    """Warm-up, then a straight line from lr to `min_lr` over the other steps. Source: Bondarenko et al. 2023."""

    kind: Literal["linear"] = "linear"
    warmup: NonNegativeInt = 100
    min_lr: NonNegativeFloat = 0.0


class Trapezoid(ConfigPart):
    """Warm-up, lr, and a straight line to `min_lr` over the last `decay` share of the steps.

    Also known as warm-up, stable, decay. If the warm-up reaches into that share, the line starts after the warm-up.
    """

    kind: Literal["trapezoid"] = "trapezoid"
    warmup: NonNegativeInt = 100
    decay: float = Field(default=0.2, gt=0, le=1)
    min_lr: NonNegativeFloat = 0.0


AnySchedule = Constant | Cosine | LinearDecay | Trapezoid
Schedule = Annotated[AnySchedule, Field(discriminator="kind")]


def scheduler(schedule: AnySchedule, optimizer: torch.optim.Optimizer, *, steps: int, lr: float) -> LambdaLR:
    """The scheduler of an optimizer, all of whose parameter groups start at `lr`, over `steps` updates."""
    warmup = schedule.warmup
    if isinstance(schedule, Constant):
        return cast(LambdaLR, get_scheduler("constant_with_warmup", optimizer, warmup))
    floor = schedule.min_lr / lr
    if isinstance(schedule, Cosine):
        return cast(LambdaLR, get_scheduler("cosine_with_min_lr", optimizer, warmup, steps, {"min_lr_rate": floor}))
    decay_steps = steps - warmup if isinstance(schedule, LinearDecay) else round(schedule.decay * steps)
    start = max(warmup, steps - decay_steps)
    return LambdaLR(optimizer, partial(_trapezoid, warmup=warmup, start=start, steps=steps, floor=floor))


def _trapezoid(step: int, *, warmup: int, start: int, steps: int, floor: float) -> float:
    """The factor on lr. The `warmup_stable_decay` of transformers warms up from `floor`, this one from 0."""
    if step < start:
        return step / warmup if step < warmup else 1.0
    # steps − start is 0 or less where the warm-up takes all steps.
    return 1 + (floor - 1) * min(1.0, (step - start) / max(1, steps - start))
