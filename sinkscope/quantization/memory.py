"""What of a model is quantized at all: bytes with scales counted, and columns that stay as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from sinkscope.grids import SCALE_BITS, effective_bits
from sinkscope.interventions import Intervention
from sinkscope.quantization.linear import OutlyingColumns, QuantizeLinear, left_out, linear_maps


def weight_bytes(model: nn.Module, quantizer: Intervention | None) -> dict[str, Any]:
    """Bytes of all matrices: quantized ones with their 16-bit scales and those that are left, and all in 16 bits.

    Empty for what quantizes no weights, or keeps some of them as inputs need (LLM.int8). A rounding that mixes bits
    keeps their average (SliM-LLM). Biases and gains of norms, a thousandth of a model, are not counted.
    """
    if not isinstance(quantizer, QuantizeLinear):
        return {}
    maps = {path: one.weight for path, one in linear_maps(model, quantizer.skip).items()}
    rounded = sum(weight.numel() * effective_bits(quantizer.weights, tuple(weight.shape)) for weight in maps.values())
    kept = SCALE_BITS * sum(left_out(model, quantizer.skip).values())
    every = SCALE_BITS * sum(weight.numel() for weight in maps.values()) + kept
    return {"weight_bytes": (rounded + kept) / 8, "weight_bytes_16": every / 8}


def columns_kept(model: nn.Module, quantizer: Intervention | None, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Of LLM.int8, the share of columns that stay in full precision: over all maps, and in the map with most of them.

    Empty for anything else, and where all maps are skipped. Without these shares its cost says nothing: what keeps
    everything costs nothing.
    """
    if not isinstance(quantizer, OutlyingColumns):
        return {}
    shares = quantizer.kept(model, inputs)
    if not shares:
        return {}
    widths = {path: one.weight.shape[-1] for path, one in linear_maps(model, quantizer.skip).items()}
    most = max(shares, key=shares.__getitem__)
    every = sum(share * widths[path] for path, share in shares.items()) / sum(widths.values())
    return {"columns_kept": every, "columns_kept_most": shares[most], "columns_kept_in": most}
