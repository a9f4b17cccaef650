"""What a recipe would take, without training or reading its corpus."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from sinkscope.data.tokenizer import load_fast_tokenizer, parse_tokenizer
from sinkscope.model import LabConfig, LabForCausalLM
from sinkscope.training import Recipe

BYTES_PER_PARAMETER = 16
"""fp32 weight, gradient and AdamW's two moments."""


@dataclass(frozen=True)
class Plan:
    """`memory_bytes` is an estimate: optimiser state exactly, activations of one micro-batch by their largest parts."""

    recipe: dict[str, Any]
    parameters: int
    tokens: int
    tokens_per_step: int
    corpus: str
    memory_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    def facts(self) -> list[tuple[str, str]]:
        """The same for people."""
        return [
            ("parameters", f"{self.parameters:,}"),
            ("tokens", f"{self.tokens:,} ({self.tokens_per_step:,} a step)"),
            ("corpus", self.corpus),
            ("memory, estimated", f"{self.memory_bytes / 2**30:.2f} GiB"),
        ]


def plan(recipe: Recipe) -> Plan:
    """Count a recipe's parameters on the meta device and estimate its memory."""
    config = LabConfig(
        **{"vocab_size": _vocabulary(recipe), **recipe.model},
        attention=recipe.attention,
        max_position_embeddings=recipe.context,
    )
    with torch.device("meta"):
        model = LabForCausalLM(config)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    tokens_per_step = recipe.batch_size * recipe.context
    return Plan(
        recipe=recipe.model_dump(mode="json"),
        parameters=parameters,
        tokens=tokens_per_step * recipe.steps,
        tokens_per_step=tokens_per_step,
        corpus=recipe.data.corpus,
        memory_bytes=parameters * BYTES_PER_PARAMETER + _activations(recipe, config),
    )


def _vocabulary(recipe: Recipe) -> int:
    size = parse_tokenizer(recipe.data.tokenizer)
    return len(load_fast_tokenizer(recipe.data.tokenizer)) if size is None else size


def _activations(recipe: Recipe, config: LabConfig) -> int:
    """What the backward pass keeps of one micro-batch.

    Per token: in each block sixteen vectors of the model's width and four of the feed-forward's, and three times the
    logits in fp32. This was 89 to 98 % of what three softmax runs took on a CPU; operations that build the weights (no
    fast path) take heads × context × context values a layer more.
    """
    tokens = (recipe.micro_batch or recipe.batch_size) * recipe.context
    width = 2 if recipe.precision == "bf16" else 4
    block = 16 * config.hidden_size + 4 * config.intermediate_size
    return tokens * (config.num_hidden_layers * block * width + 3 * config.vocab_size * 4)
