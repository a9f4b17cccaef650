"""Small quantizers written for the tests alone, and models whose outliers are planted by token or by channel."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from sinkscope.interventions import Intervention
from sinkscope.quantization import ProtectedInPass, random_tokens
from sinkscope.sinks import Choice, Tokens
from tests.planted.factory import Plant, null_model, planted_ids, planted_model


@dataclass(frozen=True)
class RoundDown(Intervention):
    """What goes into every down projection of a Llama, on one symmetric grid for each text."""

    bits: int = 8
    protect: Choice | Tokens | None = None

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        now = ProtectedInPass(model, self.protect, stack)

        def rounded(module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
            [x] = args
            left = now.exempt(x)
            step = x.abs().masked_fill(left, 0).amax((1, 2), keepdim=True) / (2 ** (self.bits - 1) - 1)
            return (torch.where(left, x, (x / step).round() * step),)

        for layer in model.model.layers:  # type: ignore[union-attr]
            stack.callback(layer.mlp.down_proj.register_forward_pre_hook(rounded).remove)  # type: ignore[union-attr]

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> RoundDown:
        return replace(self, protect=random_tokens(self.protect, generator, model, inputs))

    def describe(self) -> dict[str, Any]:
        return {"name": "RoundDown", "bits": self.bits}


def by_token(sinks: tuple[int, ...] = (0,), rows: int = 12, tokens: int = 32) -> tuple[LlamaForCausalLM, Tensor]:
    """The input of one down projection is large for the sinks alone."""
    plant = Plant(sinks=sinks, dimension=7, onset=2)
    return planted_model(plant), planted_ids(plant, rows, tokens)


def by_channel(factor: float = 300.0, rows: int = 12, tokens: int = 32) -> tuple[LlamaForCausalLM, Tensor]:
    """One channel of the input of every down projection is large for all tokens; the function is that of the null."""
    model = null_model()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.up_proj.weight[3] *= factor
            layer.mlp.down_proj.weight[:, 3] /= factor
    return model, planted_ids(Plant(sinks=()), rows, tokens)
