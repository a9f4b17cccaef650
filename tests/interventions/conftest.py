"""What the tests of interventions share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tests.families.registry import FAMILIES
from tests.measurement.conftest import build

HOSTS = [(name, host) for name in ("llama", "gpt2", "bert") for host in ("eager", "sdpa")]
HOSTS += [("gemma2", "eager"), ("gpt_oss", "eager"), ("lab:softmax", "eager"), ("lab:sigmoid", "eager")]


def inputs_of(name: str) -> dict[str, Tensor]:
    return FAMILIES[name if name in FAMILIES else "llama"].inputs()


def logits(model: nn.Module, **inputs: Any) -> Tensor:
    with torch.no_grad():
        return model(**inputs).logits


def hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def a_model(name: str, host: str = "sdpa") -> PreTrainedModel:
    return build(name, host)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def stream(model: nn.Module, **inputs: Tensor) -> Tensor:
    """The residual stream (depth, batch, position, width), by hooks of our own on the blocks of a Llama or GPT-2."""
    blocks = model.transformer.h if hasattr(model, "transformer") else model.model.layers
    found: list[Tensor] = []
    kept = [blocks[0].register_forward_pre_hook(lambda m, args: found.append(args[0].clone()))]
    for block in blocks:
        kept.append(block.register_forward_hook(lambda m, args, out: found.append(_first(out).clone())))
    try:
        logits(model, **inputs)
    finally:
        for hook in kept:
            hook.remove()
    return torch.stack(found)


def _first(output: Tensor | tuple[Tensor, ...]) -> Tensor:
    return output[0] if isinstance(output, tuple) else output
