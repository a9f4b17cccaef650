"""Learned tokens that a model puts before its input: CLS, distillation, registers [X5], sink tokens [A6]."""

from __future__ import annotations

from torch import nn

SINGLE = {"cls_token": "CLS", "class_embedding": "CLS", "distillation_token": "distillation"}
REGISTERS = "register_tokens"  # (1, n, width)


def sink_tokens(model: nn.Module) -> int:
    """How many learned tokens the model puts before every sequence; they are positions 0 … n−1 of a measurement."""
    return int(getattr(getattr(model, "config", None), "sink_tokens", 0))


def vision_prefix(model: nn.Module) -> list[str]:
    """Names of the learned tokens that stand before the patches, in their order; empty for a model without any."""
    named = {path.rpartition(".")[2]: parameter for path, parameter in model.named_parameters()}
    names = [label for suffix, label in SINGLE.items() if suffix in named]
    count = named[REGISTERS].shape[1] if REGISTERS in named else 0
    return [*names, *(f"register {index}" for index in range(count))]
