"""What the demonstration trains, and how it shares the machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from sinkscope.training.machine import processors

MODEL = "nano"
STEPS = 1100  # within these the fast recipe had a sink in every seed; a slow machine ends earlier, and says so
FAST = (f"steps={STEPS}", "model.num_attention_heads=2")
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
    changes: tuple[str, ...] = FAST

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


def fast() -> tuple[str, ...]:
    """The recipe in which a sink emerges soonest, of those that sigmoid learns with too (not post-norm): two heads, and
    bf16 where the machine multiplies it.

    Compiling it would gain a tenth of a step, and cost what sixty steps take.
    """
    if torch.accelerator.is_available():
        bf16 = torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        bf16 = torch.cpu._is_avx512_bf16_supported()
    return (*FAST, "precision=bf16") if bf16 else FAST


def full(out: Path) -> DemoPlan:
    """A report card, then softmax and sigmoid in parallel."""
    return DemoPlan(out, ("softmax", "sigmoid"), eval_every=25, save_every=100, seconds=SECONDS, changes=fast())


def quick(out: Path) -> DemoPlan:
    """A small model on three kinds of input, and the beginning of the softmax run of the full demonstration."""
    return DemoPlan(
        out, ("softmax",), eval_every=10, save_every=20, seconds=QUICK_SECONDS, card=False, model=MODEL, changes=fast()
    )
