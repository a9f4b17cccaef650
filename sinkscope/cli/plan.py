"""What a recipe would take, without training or reading its corpus."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from sinkscope.data import load_fast_tokenizer, parse_tokenizer, with_mask
from sinkscope.model import LabConfig, LabForCausalLM
from sinkscope.training import MeasuredStep, Recipe, measured_step
from sinkscope.training.cost import Memory, flops_per_token, memory


@dataclass(frozen=True)
class TrainingPlan:
    """Counts are exact; `memory` (in one process) and `flops` are estimates by formula.

    `here`: a step that was taken on this machine's processors, and the time of the whole run that follows from it.
    """

    recipe: dict[str, Any]
    parameters: int
    tokens: int
    tokens_per_step: int
    corpus: str
    memory: Memory
    flops: int
    here: MeasuredStep

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "memory_bytes": self.memory.total}

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
    tokens = tokens_per_step * recipe.steps
    return TrainingPlan(
        recipe=recipe.model_dump(mode="json"),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        tokens=tokens,
        tokens_per_step=tokens_per_step,
        corpus=recipe.data.corpus,
        memory=memory(recipe, model),
        flops=tokens * flops_per_token(model, config, recipe.context),
        here=measured_step(config, recipe.context, tokens),
    )


def _vocabulary(recipe: Recipe) -> int:
    """How many tokens there are; where tokens are hidden, with the mask token."""
    size, masked = parse_tokenizer(recipe.data.tokenizer), recipe.loss.masked is not None
    if size is not None:
        return size + masked
    tokenizer = load_fast_tokenizer(recipe.data.tokenizer)
    return len(with_mask(tokenizer) if masked else tokenizer)


def _bytes(value: int) -> str:
    return f"{value / 2**30:.2f} GiB" if value < 10 * 2**30 else f"{value / 2**30:.0f} GiB"


def _times(shortest: float, longest: float) -> str:
    units = (("days", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    unit, length = next((pair for pair in units if longest >= 2 * pair[1]), units[-1])
    low, high = (f"{seconds / length:,.{0 if longest >= 10 * length else 1}f}" for seconds in (shortest, longest))
    return f"{low} – {high} {unit}"
