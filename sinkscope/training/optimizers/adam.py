"""Optimisers as values; each builds itself for a model."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import nn

from sinkscope.training.parts import Part

Decay = Annotated[float, Field(ge=0, lt=1)]


class AdamW(Part):
    """AdamW with decoupled decay: p ← p − lr·(weight_decay·p + m̂ / (√v̂ + eps)).

    The defaults are the paper's (catalogue §8), which decays every parameter; `decay_norms` and `decay_embeddings` make
    the usual exclusions. Parameters with fewer than two dimensions (norm gains, biases, sink logits) count as norms.
    `clip` is the largest global gradient norm, None for no clipping.
    """

    name: Literal["adamw"] = "adamw"
    lr: PositiveFloat
    weight_decay: NonNegativeFloat = 0.1
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    eps: PositiveFloat = 1e-8
    clip: PositiveFloat | None = 1.0
    decay_norms: bool = True
    decay_embeddings: bool = True

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimiser over the model's trainable parameters, in at most two groups."""
        embeddings = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
        decayed: list[nn.Parameter] = []
        spared: list[nn.Parameter] = []
        for parameter in model.parameters():
            if parameter.requires_grad:
                (decayed if self._decays(parameter, embeddings) else spared).append(parameter)
        groups = [{"params": decayed, "weight_decay": self.weight_decay}, {"params": spared, "weight_decay": 0.0}]
        return torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=self.lr,
            betas=self.betas,
            eps=self.eps,
            fused=True,  # one pass over each tensor; a quarter of the loop's time on CPU
        )

    def _decays(self, parameter: nn.Parameter, embeddings: set[int]) -> bool:
        if id(parameter) in embeddings:
            return self.decay_embeddings
        return self.decay_norms or parameter.ndim >= 2
