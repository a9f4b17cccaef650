"""What the tests of quantized linear maps share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from tests.families.registry import FAMILIES

Round = Callable[[Tensor], Tensor]


def a_model(name: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    model = FAMILIES[name].build("eager", dtype)
    if dtype == torch.float64 and model._can_set_experts_implementation():
        model.set_experts_implementation("eager")  # the grouped product takes no doubles
    return model


def inputs_of(name: str) -> dict[str, Tensor]:
    return FAMILIES[name].inputs()


@torch.no_grad()
def logits(model: nn.Module, **inputs: Any) -> Tensor:
    output = model(**inputs)
    values = output.values() if hasattr(output, "values") else output
    return next(value for value in values if isinstance(value, Tensor) and value.is_floating_point())


def distance(found: Tensor, expected: Tensor) -> float:
    """|found − expected| / |expected|."""
    return float((found - expected).detach().norm() / expected.detach().norm())


def parameters(model: nn.Module) -> dict[tuple[str, str], Tensor]:
    """Every parameter as it stands in its module, tied ones in each."""
    return {(path, name): value for path, module in model.named_modules() for name, value in module._parameters.items()}


def hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def by_hand(model: nn.Module, weight: Round, entering: Round, inside: str = "layers") -> nn.Module:
    """The model with every linear map of its blocks written anew: y = weight(W) entering(x) + b."""
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.Linear | Conv1D) and f".{inside}." in path:
            matrix = module.weight.data.T if isinstance(module, Conv1D) else module.weight.data
            parent = model.get_submodule(path.rpartition(".")[0])
            setattr(parent, path.rpartition(".")[2], _ByHand(weight(matrix), module.bias, entering))
    return model


class _ByHand(nn.Module):
    def __init__(self, weight: Tensor, bias: Tensor | None, entering: Round) -> None:
        super().__init__()
        self.matrix, self.add, self.entering = weight, bias, entering

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(self.entering(x), self.matrix, self.add)


def symmetric(bits: int, axes: int | tuple[int, ...] = -1) -> Round:
    """Rounding to whole multiples of max |x| / (2^(bits−1) − 1), over the last axis, or over several."""
    top = 2 ** (bits - 1) - 1

    def rounded(x: Tensor) -> Tensor:
        size = x.abs().amax(axes, keepdim=True)
        return torch.round(x / (size / top)).clamp(-top, top) * (size / top)

    return rounded
