"""Bytes that a quantized model's weights would take, scales counted: a saving in bits without them is a lie."""

from __future__ import annotations

from typing import Any

from torch import nn

from sinkscope.interventions import Intervention
from sinkscope.quantization.grid import SCALE_BITS, effective_bits
from sinkscope.quantization.linear import QuantizeLinear, left_out, linear_maps


def weight_bytes(model: nn.Module, quantizer: Intervention | None) -> dict[str, Any]:
    """Bytes of all matrices: quantized ones with their 16-bit scales and those that are left, and all in 16 bits.

    Empty for what quantizes no weights. A rounding that mixes bits keeps their average (SliM-LLM). Biases and gains of
    norms, a thousandth of a model, are not counted.
    """
    if not isinstance(quantizer, QuantizeLinear):
        return {}
    maps = {path: one.weight for path, one in linear_maps(model, quantizer.skip).items()}
    rounded = sum(weight.numel() * effective_bits(quantizer.weights, tuple(weight.shape)) for weight in maps.values())
    kept = SCALE_BITS * sum(left_out(model, quantizer.skip).values())
    every = SCALE_BITS * sum(weight.numel() for weight in maps.values()) + kept
    return {"weight_bytes": (rounded + kept) / 8, "weight_bytes_16": every / 8}
