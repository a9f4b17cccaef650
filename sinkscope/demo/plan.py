"""What the demonstration trains, and how it shares the machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sinkscope.training.machine import processors

MODEL = "nano"
STEPS = 1100
MOST_THREADS = 4  # a model of this size is not faster with more
QUICK_SECONDS = 66.0  # of the 90 s of the quick demonstration, from its start; imports and the report take the rest
PATIENCE = 90.0  # seconds that a slow machine gets on top to reach the first evaluation


@dataclass(frozen=True)
class DemoPlan:
    """Runs of one recipe that differ only in the attention operation, and a trained model to measure first.

    `model` is a shipped model or a run's folder; `changes` are overrides of the recipe. After `seconds`, counted from
    the start of the demonstration, the runs are stopped; None lets them finish.
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
        """All overrides of one run. How often it evaluates and saves does not change its identity."""
        frequencies = (f"eval_every={self.eval_every}", f"save_every={self.save_every}", "log_every=5")
        return [f"attention={attention}", *frequencies, *self.changes]

    @property
    def threads(self) -> int:
        """Threads per run: the runs divide the cores."""
        return max(1, min(MOST_THREADS, processors() // len(self.attentions)))


def full(out: Path) -> DemoPlan:
    """Softmax and sigmoid in parallel, to the end."""
    return DemoPlan(out, ("softmax", "sigmoid"), eval_every=25, save_every=100)


def quick(out: Path) -> DemoPlan:
    """The beginning of the softmax run of the full demonstration, which can continue it."""
    return DemoPlan(out, ("softmax",), eval_every=10, save_every=20, seconds=QUICK_SECONDS)
