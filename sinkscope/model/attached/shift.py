"""How far a model's outputs moved when an operation was attached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks import device_of, evaluating

SAMPLES, TOKENS = 32, 8  # many rows: scores are lowest where rows begin, and differ most between first tokens
IMAGES = 2
SMALL = 0.02  # of the outputs' standard deviation: what half precision rounds, and closed slots take


@dataclass(frozen=True)
class Shift:
    """The largest change of an output on the measured inputs.

    `output`: in logits, or units of the last hidden states where the model has no logits. `nats`: the largest
    KL(before ‖ after) of a token's prediction, None without logits. `relative`: `output` in standard deviations of the
    outputs before. All hold for these inputs: a slot takes σ(b − L) of a query's mass, with L the log-sum-exp of the
    query's scores, which other inputs may make smaller.
    """

    output: float
    nats: float | None
    on: str
    relative: float = 0.0

    @property
    def small(self) -> bool:
        """Whether the outputs changed by at most 2 % of their standard deviation."""
        return self.relative <= SMALL

    def __str__(self) -> str:
        if self.nats is None:
            return f"outputs moved by up to {self.output:.2g} on {self.on}"
        return f"logits moved by up to {self.output:.2g}, predictions by {self.nats:.2g} nats, on {self.on}"


def ordinary(model: PreTrainedModel) -> dict[str, Tensor]:
    """Random inputs for a text or image model, always the same and without touching the global generator."""
    generator, config = torch.Generator().manual_seed(0), model.config
    if model.main_input_name == "pixel_values":
        side = config.image_size
        sides = (side, side) if isinstance(side, int) else tuple(side)
        return {"pixel_values": torch.randn(IMAGES, config.num_channels, *sides, generator=generator)}
    tokens = min(TOKENS, getattr(config, "max_position_embeddings", TOKENS))
    return {"input_ids": torch.randint(config.vocab_size, (SAMPLES, tokens), generator=generator)}


def outputs(model: PreTrainedModel, inputs: Mapping[str, Any]) -> Tensor:
    """Logits, or the last hidden states of a model that has none, as it gives them in evaluation."""
    placed = {
        name: value.to(device_of(model)) if isinstance(value, Tensor) else value for name, value in inputs.items()
    }
    floats = {name: placed[name].to(model.dtype) for name in ("pixel_values",) if name in placed}
    with evaluating(model), torch.no_grad():
        output = model(**placed | floats)
    logits = getattr(output, "logits", None)
    return (output[0] if logits is None else logits).float()


def shift(before: Tensor, after: Tensor, predicts: bool, on: str) -> Shift:
    """The change between two outputs. Raises `UnsupportedModelError` for outputs that are not numbers."""
    difference = (after - before).abs().max()
    if not bool(torch.isfinite(difference)):
        raise UnsupportedModelError(f"the model's outputs on {on} are not finite: nothing can be said of its start")
    nats = None
    if predicts:
        first, second = before.log_softmax(-1), after.log_softmax(-1)
        # Rounding can take the KL of equal predictions below zero.
        nats = max(0.0, float((first.exp() * (first - second)).sum(-1).max()))
    return Shift(
        float(difference), nats, on, float(difference / before.std().clamp(min=torch.finfo(torch.float32).tiny))
    )
