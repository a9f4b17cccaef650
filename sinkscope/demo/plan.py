"""What the demonstration trains, and how it shares the machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sinkscope.training.machine import processors

MODEL = "nano"
STEPS = 1100
MOST_THREADS = 4
"""A model of this size does not get faster with more."""

QUICK_SECONDS = 66.0
"""Of the 90 s of the quick demonstration, counted from its start; the rest is for imports and the report."""

PATIENCE = 90.0
"""Seconds that a slow machine gets beyond these to come to the first evaluation."""


@dataclass(frozen=True)
class DemoPlan:
    """Runs of one recipe that differ in the attention operation alone, beside a model that was trained before.

    `model` is a shipped model or a run's folder; `changes` are overrides of the recipe. After `seconds`, counted from
    the demonstration's start, the runs are stopped where they are; None lets them finish.
    """

    out: Path
    attentions: tuple[str, ...]
    eval_every: int
    save_every: int
    seconds: float | None = None
    model: str = MODEL
    recipe: str = MODEL
    changes: tuple[str, ...] = (f"steps={STEPS}",)

    @property
    def runs(self) -> Path:
        """The parent folder of the runs."""
        return self.out / "runs"

    def overrides(self, attention: str) -> list[str]:
        """All overrides of one run. How often a run evaluates and saves does not decide which run it is."""
        often = (f"eval_every={self.eval_every}", f"save_every={self.save_every}", "log_every=5")
        return [f"attention={attention}", *often, *self.changes]

    @property
    def threads(self) -> int:
        """Threads of each run: the cores are shared out."""
        return max(1, min(MOST_THREADS, processors() // len(self.attentions)))


def full(out: Path) -> DemoPlan:
    """Softmax and sigmoid side by side, to the end."""
    return DemoPlan(out, ("softmax", "sigmoid"), eval_every=25, save_every=100)


def quick(out: Path) -> DemoPlan:
    """The beginning of the full demonstration's softmax run, which that would go on with."""
    return DemoPlan(out, ("softmax",), eval_every=10, save_every=20, seconds=QUICK_SECONDS)
