"""How much of a model is quantized: bytes including scales, and columns in full precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from sinkscope.grids import SCALE_BITS, bits_of
from sinkscope.interventions import Intervention
from sinkscope.quantization.linear import OutlyingColumns, QuantizeLinear, left_out, linear_maps


def weight_bytes(model: nn.Module, quantizer: Intervention | None) -> dict[str, Any]:
    """Bytes of all matrices, quantized ones with their 16-bit scales and the rest, and the bytes of all in 16 bits.

    Empty for interventions that quantize no weights, or keep some of them depending on inputs (LLM.int8). A rounding
    that mixes bits keeps their average (SliM-LLM). Biases and gains of norms, a thousandth of a model, do not count.
    """
    if not isinstance(quantizer, QuantizeLinear):
        return {}
    maps = {path: one.weight for path, one in linear_maps(model, quantizer.skip).items()}
    rounded = sum(weight.numel() * bits_of(quantizer.weights, tuple(weight.shape)) for weight in maps.values())
    kept = SCALE_BITS * sum(left_out(model, quantizer.skip).values())
    whole = SCALE_BITS * sum(weight.numel() for weight in maps.values()) + kept
    return {"weight_bytes": (rounded + kept) / 8, "weight_bytes_16": whole / 8}


def columns_kept(model: nn.Module, quantizer: Intervention | None, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """For LLM.int8, the share of columns that stay in full precision: over all maps, and in the map with most of them.

    Empty for anything else, and if all maps are skipped. The cost of LLM.int8 has no meaning without these shares: with
    all columns in full precision it is 0.
    """
    if not isinstance(quantizer, OutlyingColumns):
        return {}
    shares = quantizer.kept(model, inputs)
    if not shares:
        return {}
    widths = {path: one.weight.shape[-1] for path, one in linear_maps(model, quantizer.skip).items()}
    most = max(shares, key=shares.__getitem__)
    share_of_all = sum(share * widths[path] for path, share in shares.items()) / sum(widths.values())
    return {"columns_kept": share_of_all, "columns_kept_most": shares[most], "columns_kept_in": most}
