"""Schemes by name: one grammar and one list for the command line, the documentation and `study`."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import Cache

from sinkscope.errors import InputError, unknown
from sinkscope.hooks import checked_inputs, device_of, evaluating, parameters, part
from sinkscope.interventions import Intervention
from sinkscope.quantization.grid import Grid
from sinkscope.quantization.kv import QuantizeCache, quantized_cache
from sinkscope.quantization.linear import QuantizeLinear, RotateInputs, SmoothQuant, calibrated, linear_maps
from sinkscope.quantization.linear.maps import HEAD
from sinkscope.quantization.spared import Spared
from sinkscope.quantization.studies.scheme import QuantizationScheme

LINEAR = re.compile(r"w(\d+)(?:a(\d+)-(tensor|static|token))?(?:-(smooth|rotated))?")
CACHED = re.compile(r"kv(\d+)-(token|kivi|head)")
GROUP = 32  # tokens that share a range of a key's channel, as in KIVI
SMOOTH = 0.5  # α of SmoothQuant

Ranges = Literal["tensor", "static", "token"]
RANGES: dict[str, str] = {
    "tensor": "one range for all tokens of a call",
    "static": "one range for all tokens, frozen from calibration",
    "token": "a range for each token",
}
CACHES: dict[str, str] = {
    "token": "a range for each token and head",
    "kivi": f"keys by channel in groups of {GROUP} tokens, values by token, the open group in full precision",
    "head": "a range for each head, which grows with the text",
}


def scheme_named(name: str) -> QuantizationScheme:
    """A scheme of the list, or of its grammar with other bits: w6a6-tensor, kv3-head.

    Raises `InputError` for other names, naming the nearest, and for bits outside 1 … 16.
    """
    if found := LINEAR.fullmatch(name):
        weights, activations, ranges, first = found.groups()
        if activations is None and first is None:
            return _weights(name, int(weights))
        if activations is not None:
            return _linear(name, int(weights), int(activations), ranges, first)
    if found := CACHED.fullmatch(name):
        bits, ranges = found.groups()
        return _cached(name, int(bits), ranges)
    raise unknown("scheme", name, SCHEMES)


def _weights(name: str, bits: int) -> QuantizationScheme:
    grid = Grid(bits, symmetric=bits > 1)

    def make(model: nn.Module, calibration: Mapping[str, Any], spared: Spared | None) -> Intervention:
        if spared is not None:
            raise InputError(
                f"{name} rounds weights, which are the same for all tokens: to spare tokens is to keep their keys and "
                "values of the full model, in a prefix (find_prefix); study its cost alone (--spare none)"
            )
        return QuantizeLinear(grid)

    return QuantizationScheme(name, f"weights of {bits} bits, a range for each output; activations as they are", make)


def _linear(name: str, weights: int, activations: int, ranges: str, first: str | None) -> QuantizationScheme:
    grid = Grid(weights, symmetric=weights > 1)
    given = Grid(activations, "token" if ranges == "token" else "tensor", symmetric=activations > 1)

    def make(model: nn.Module, calibration: Mapping[str, Any], spared: Spared | None) -> Intervention:
        transform: Any = None
        skip = _skipped(model, calibration)
        if first == "smooth":
            transform = SmoothQuant.of(model, calibration, SMOOTH, spared=spared, skip=skip)
        elif first == "rotated":
            transform = RotateInputs(skip=skip)
        static = (
            calibrated(model, calibration, given, spared=spared, skip=skip, transform=transform)
            if ranges == "static"
            else None
        )
        return QuantizeLinear(grid, given, static=static, spared=spared, skip=skip, transform=transform)

    before = {None: "", "smooth": f"; outliers moved to weights first (α = {SMOOTH:g})", "rotated": "; rotated first"}
    says = (
        f"weights of {weights} bits, a range for each output; activations of {activations} bits, {RANGES[ranges]}"
        f"{before[first]}"
    )
    return QuantizationScheme(name, says, make)


def _cached(name: str, bits: int, ranges: str) -> QuantizationScheme:
    keys, values = Grid(bits), Grid(bits)
    if ranges == "kivi":
        keys = Grid(bits, "channel", group=GROUP)
    elif ranges == "head":
        keys, values = Grid(bits, "head"), Grid(bits, "head")

    def make(model: nn.Module, calibration: Mapping[str, Any], spared: Spared | None) -> Intervention:
        return QuantizeCache(keys, values, spared)

    def store(model: nn.Module, spared: Spared | None) -> Cache:
        return quantized_cache(model, keys, values, spared)

    stored = ranges != "head" and bits <= 8
    says = f"cached keys and values of {bits} bits, {CACHES[ranges]}"
    return QuantizationScheme(name, says, make, caches=True, store=store if stored else None)


def _skipped(model: nn.Module, inputs: Mapping[str, Any]) -> tuple[str, ...]:
    """The head, and maps that are never called though their block is: their weight is read directly.

    What goes into those cannot be quantized; a `UserWarning` names them.
    """
    used: set[str] = set()
    maps = {path: one for path, one in linear_maps(model).items() if not (one.routed or one.stacked or one.crosses)}
    given, samples = checked_inputs(model, inputs)
    options = {"use_cache": False} if "use_cache" in parameters(model).parameters else {}
    with ExitStack() as stack, evaluating(model), torch.no_grad():
        for path, one in maps.items():
            one.edit_input(partial(_noted, used, path), stack)
        model(**part(given, slice(0, 1), samples, device_of(model)), **options)
    unused = sorted(maps.keys() - used)
    if unused:
        more = f" and {len(unused) - 3} more" if len(unused) > 3 else ""
        warnings.warn(
            f"left as they are: {', '.join(unused[:3])}{more}; their weights are read directly, so what goes into them "
            "cannot be quantized",
            UserWarning,
            stacklevel=5,
        )
    return (HEAD, *unused)


def _noted(used: set[str], path: str, x: Tensor, routing: object) -> Tensor:
    used.add(path)
    return x


NAMES = (
    "w8a8-tensor",
    "w8a8-static",
    "w8a8-token",
    "w6a6-tensor",
    "w4a8-tensor",
    "w8a8-tensor-smooth",
    "w8a8-tensor-rotated",
    "w4",
    "kv4-token",
    "kv2-token",
    "kv4-kivi",
    "kv2-kivi",
    "kv3-head",
    "kv2-head",
)
SCHEMES: dict[str, QuantizationScheme] = {name: scheme_named(name) for name in NAMES}
