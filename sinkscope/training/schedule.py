"""Learning rate schedules as values."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt
from torch.optim.lr_scheduler import LambdaLR

from sinkscope.invalid import Part


class Constant(Part):
    """Linear warm-up from 0, then the full rate: rate(t) = lr · min(1, t / warmup), t = 0, 1, …"""

    kind: Literal["constant"] = "constant"
    warmup: NonNegativeInt = 100

    def rate(self, step: int, *, steps: int, lr: float) -> float:
        """The learning rate of update number `step`, counted from 0."""
        return lr * step / self.warmup if step < self.warmup else lr


class Cosine(Part):
    """Linear warm-up from 0, then half a cosine from lr at step `warmup` to `min_lr` at the last step."""

    kind: Literal["cosine"] = "cosine"
    warmup: NonNegativeInt = 100
    min_lr: NonNegativeFloat = 0.0

    def rate(self, step: int, *, steps: int, lr: float) -> float:
        """The learning rate of update number `step`, counted from 0."""
        if step < self.warmup:
            return lr * step / self.warmup
        progress = _progress(step, self.warmup, steps)
        return self.min_lr + (lr - self.min_lr) * (1 + math.cos(math.pi * progress)) / 2


class Linear(Part):
    """Linear warm-up from 0, then a straight line from lr at step `warmup` to `min_lr` at the last step.

    Source: Bondarenko et al. 2023.
    """

    kind: Literal["linear"] = "linear"
    warmup: NonNegativeInt = 100
    min_lr: NonNegativeFloat = 0.0

    def rate(self, step: int, *, steps: int, lr: float) -> float:
        """The learning rate of update number `step`, counted from 0."""
        if step < self.warmup:
            return lr * step / self.warmup
        progress = _progress(step, self.warmup, steps)
        return lr + (self.min_lr - lr) * progress


class Trapezoid(Part):
    """Warm-up, the full rate, and a straight line to `min_lr` over the last `decay` share of the steps.

    Also known as warm-up, stable, decay. Where the warm-up reaches into that share, the line starts after it.
    """

    kind: Literal["trapezoid"] = "trapezoid"
    warmup: NonNegativeInt = 100
    decay: float = Field(default=0.2, gt=0, le=1)
    min_lr: NonNegativeFloat = 0.0

    def rate(self, step: int, *, steps: int, lr: float) -> float:
        """The learning rate of update number `step`, counted from 0."""
        begin = max(self.warmup, steps - round(self.decay * steps))
        if step < begin:
            return Constant(warmup=self.warmup).rate(step, steps=steps, lr=lr)
        return Linear(warmup=0, min_lr=self.min_lr).rate(step - begin, steps=steps - begin, lr=lr)


AnySchedule = Constant | Cosine | Linear | Trapezoid
Schedule = Annotated[AnySchedule, Field(discriminator="kind")]


def scheduler(schedule: AnySchedule, optimizer: torch.optim.Optimizer, *, steps: int, lr: float) -> LambdaLR:
    """The schedule on an optimizer whose groups all start at `lr`."""
    return LambdaLR(optimizer, lambda step: schedule.rate(step, steps=steps, lr=lr) / lr)


def _progress(step: int, warmup: int, steps: int) -> float:
    """How much of the way from the warm-up to the last step is made, 0 to 1."""
    return min(1.0, (step - warmup) / max(1, steps - warmup))
