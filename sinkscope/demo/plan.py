"""What the demonstration trains, and how it shares the machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sinkscope.training.machine import processors

MODEL = "nano"
STEPS = 200  # of a live run: no sink has emerged by then, and the page says so
MOST_THREADS = 4  # a model of this size is not faster with more
SECONDS = 270.0  # of the five minutes of the demonstration, from its start; imports and the report take the rest
QUICK_SECONDS = 66.0  # of the 90 s of the quick one
DOWNLOAD = 60.0  # of these, for a pretrained model; without it `MODEL` gets the report card
PATIENCE = 90.0  # seconds that a slow machine gets on top to reach the first evaluation


@dataclass(frozen=True)
class DemoPlan:
    """Runs of one recipe that differ only in the attention operation, and a trained model to measure first.

    `model` is what is measured: a shipped model, a run's folder or a GGUF file, None for a pretrained model where one
    can be had. It gets a report card, or is read on three kinds of input where `card` is False. `changes` are overrides
    of the recipe. After `seconds`, counted from the start of the demonstration, the runs are stopped.
    """

    out: Path
    attentions: tuple[str, ...]
    eval_every: int
    save_every: int
    seconds: float
    card: bool = True
    model: str | None = None
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
    """A report card, then softmax and sigmoid in parallel."""
    return DemoPlan(out, ("softmax", "sigmoid"), eval_every=10, save_every=50, seconds=SECONDS)


def quick(out: Path) -> DemoPlan:
    """A small model on three kinds of input, and the beginning of the softmax run of the full demonstration."""
    return DemoPlan(out, ("softmax",), eval_every=10, save_every=20, seconds=QUICK_SECONDS, card=False, model=MODEL)
