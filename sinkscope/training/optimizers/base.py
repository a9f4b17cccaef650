"""The common part of a recipe's optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import nn

from sinkscope.errors.invalid import ConfigPart

Decay = Annotated[float, Field(ge=0, lt=1)]


class OptimizerPart(ConfigPart):
    """Learning rate, decay and clipping.

    By default every parameter decays, as in the paper (Gu et al. 2025); `decay_norms=False` and
    `decay_embeddings=False` make the usual exceptions. Parameters with fewer than two dimensions (norm gains, biases,
    sink logits) count as norms. `clip` is the largest global gradient norm, None for no clipping.

    `elementwise`: whether the update of each number is independent of the others, so that a process may hold a part of
    a matrix.
    """

    elementwise: ClassVar[bool] = False

    lr: PositiveFloat
    weight_decay: NonNegativeFloat = 0.1
    clip: PositiveFloat | None = 1.0
    decay_norms: bool = True
    decay_embeddings: bool = True

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer over the model's trainable parameters."""
        raise NotImplementedError

    def numbers(self, model: nn.Module) -> int:
        """The number of fp32 values in the optimizer's state for a model's trainable parameters, less step counts."""
        raise NotImplementedError

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Trainable parameters in at most two groups: those that decay, and those that do not."""
        # By identity: a tied output layer is the embedding, and decays as one.
        embeddings = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
        decayed: list[nn.Parameter] = []
        undecayed: list[nn.Parameter] = []
        for parameter in model.parameters():
            if parameter.requires_grad:
                (decayed if self._decays(parameter, embeddings) else undecayed).append(parameter)
        groups = [{"params": decayed, "weight_decay": self.weight_decay}, {"params": undecayed, "weight_decay": 0.0}]
        return [group for group in groups if group["params"]]

    def trainable(self, model: nn.Module) -> int:
        """The number of trainable parameters."""
        return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)

    def _decays(self, parameter: nn.Parameter, embeddings: set[int]) -> bool:
        if id(parameter) in embeddings:
            return self.decay_embeddings
        return self.decay_norms or parameter.ndim >= 2


def evaluated(closure: Callable[[], float] | None) -> float | None:
    """The loss of an optimizer step's optional closure, which recomputes gradients."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
