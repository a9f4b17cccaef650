"""What a recipe would take, without training or reading its corpus."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from sinkscope.data import load_fast_tokenizer, parse_tokenizer, with_mask
from sinkscope.model import LabConfig, LabForCausalLM
from sinkscope.training import MeasuredStep, Recipe, measured_step
from sinkscope.training.budget import GPUS, UTILIZATION, Estimate, Memory, estimates, memory, total_flops

Row = tuple[str, ...]


@dataclass(frozen=True)
class TrainingPlan:
    """Counts are exact; `memory` (of one process), `flops` and `estimates` are estimates by formula.

    `here`: a step that was taken on this machine's processors, and what follows from it. `utilisation`: the range of
    the GPUs' peak that the times assume.
    """

    recipe: dict[str, Any]
    parameters: int
    tokens: int
    tokens_per_step: int
    corpus: str
    memory: Memory
    flops: int
    estimates: list[Estimate]
    here: MeasuredStep
    utilisation: tuple[float, float] = UTILIZATION

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "memory_bytes": self.memory.total, "gpus": [asdict(gpu) for gpu in GPUS]}

    def facts(self) -> list[tuple[str, str]]:
        """The same for people."""
        parts = {name: value for name, value in asdict(self.memory).items() if value}
        return [
            ("parameters", f"{self.parameters:,}"),
            ("tokens", f"{self.tokens:,} ({self.tokens_per_step:,} a step)"),
            ("corpus", self.corpus),
            ("arithmetic, estimated", f"{self.flops:.2g} FLOP"),
            (
                f"time on these processors ({self.here.threads} thread{'' if self.here.threads == 1 else 's'})",
                f"{_times(*self.here.total)}, from a step of {self.here.tokens} tokens that took "
                f"{self.here.seconds[0]:.2g} s",
            ),
            ("memory, estimated", f"{_bytes(self.memory.total)} in one process"),
            *((f"  {name}", _bytes(value)) for name, value in parts.items()),
        ]

    def headings(self) -> Row:
        """The columns of `rows`: the GPU, and each way to use some of it."""
        return "GPU (estimates)", *(f"{count} × {parallel}" if count > 1 else "one" for count, parallel in self._ways())

    def rows(self) -> list[Row]:
        """For each kind of GPU and each way: how long, with a smaller micro_batch where the recipe's does not fit.

        Where none does: how much memory the recipe's own would need.
        """
        cells = {(each.gpu, each.count, each.parallel): _cell(each) for each in self.estimates}
        named: dict[Row, list[str]] = {}
        for gpu in GPUS:
            named.setdefault(tuple(cells[gpu.name, *way] for way in self._ways()), []).append(gpu.name)
        return [(_together(names), *found) for found, names in named.items()]

    def footnote(self) -> str:
        """What the times assume."""
        low, high = (f"{100 * share:.0f}" for share in self.utilisation)
        return (
            f"times on GPUs are estimates that assume {low} to {high} % of each maker's peak; where all are alike, "
            "launching kernels decides; "
            "micro N: the run fits with --set micro_batch=N and stays the same run"
        )

    def _ways(self) -> list[tuple[int, str]]:
        return list(dict.fromkeys((each.count, each.parallel) for each in self.estimates))


def plan(recipe: Recipe) -> TrainingPlan:
    """Build a recipe's model on the meta device, count, and estimate."""
    config = LabConfig(
        **{"vocab_size": recipe.model.get("vocab_size") or _vocabulary(recipe), **recipe.model},
        attention=recipe.operation,
        max_position_embeddings=recipe.context,
    )
    with torch.device("meta"):
        model = LabForCausalLM(config)
    tokens_per_step = recipe.batch_size * recipe.context
    return TrainingPlan(
        recipe=recipe.model_dump(mode="json"),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        tokens=tokens_per_step * recipe.steps,
        tokens_per_step=tokens_per_step,
        corpus=recipe.data.corpus,
        memory=memory(recipe, model),
        flops=total_flops(recipe, model),
        estimates=estimates(recipe, model),
        here=measured_step(config, recipe.context, tokens_per_step * recipe.steps),
    )


def _together(names: list[str]) -> str:
    """GPUs whose row is the same."""
    return names[0] if len(names) == 1 else "any of these" if len(names) == len(GPUS) else ", ".join(names)


def _vocabulary(recipe: Recipe) -> int:
    """How many tokens there are; where tokens are hidden, with the mask token."""
    size, masked = parse_tokenizer(recipe.data.tokenizer), recipe.loss.masked is not None
    if size is not None:
        return size + masked
    tokenizer = load_fast_tokenizer(recipe.data.tokenizer)
    return len(with_mask(tokenizer) if masked else tokenizer)


def _cell(estimate: Estimate) -> str:
    if not estimate.fits and estimate.micro_batch is None:
        return f"needs {_bytes(estimate.memory_bytes)}"
    smaller = "" if estimate.fits else f", micro {estimate.micro_batch}"
    return f"{_times(*estimate.seconds)}{smaller}"


def _bytes(value: int) -> str:
    return f"{value / 2**30:.2f} GiB" if value < 10 * 2**30 else f"{value / 2**30:.0f} GiB"


def _times(shortest: float, longest: float) -> str:
    units = (("days", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    unit, length = next((pair for pair in units if longest >= 2 * pair[1]), units[-1])
    low, high = (f"{seconds / length:,.{0 if longest >= 10 * length else 1}f}" for seconds in (shortest, longest))
    return f"{low} – {high} {unit}"
