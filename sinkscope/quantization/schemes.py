"""Schemes by name: one grammar and one list for the command line, the documentation and trials."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from math import gcd
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import Cache

from sinkscope.errors import InputError, unknown
from sinkscope.grids import EXACT, SHARE, Grid, check_codebooks
from sinkscope.hooks import checked_inputs, device_of, evaluating, parameters, part
from sinkscope.interventions import Intervention
from sinkscope.quantization.kv import QuantizeCache, find_codebooks, quantized_cache
from sinkscope.quantization.linear import (
    GPTQ,
    DuQuant,
    OutlyingColumns,
    QuantizeLinear,
    RotateInputs,
    Rounding,
    SliM,
    SmoothQuant,
    Transform,
    calibrated,
    linear_maps,
)
from sinkscope.quantization.linear.duquant import block_of
from sinkscope.quantization.linear.maps import HEAD
from sinkscope.quantization.protected import Protect

LINEAR = re.compile(r"w(\d+)(?:a(\d+)-(tensor|static|token)(?:-(smooth|rotated|duquant))?)?(?:-(gptq|slim))?")
COLUMNS = re.compile(r"llm-int8(?:-(\d+(?:\.\d+)?))?")
CACHED = re.compile(r"kv(\d+)-(token|kivi|head|kvquant)")
GROUP = 32  # tokens that share a range of a key's channel, as in KIVI
INPUTS = 128  # of an output that share bits and a range, at most, as in SliM-LLM
SMOOTH = 0.5  # α of SmoothQuant
THRESHOLD = 6.0  # of LLM.int8

Ranges = Literal["tensor", "static", "token"]
RANGES: dict[str, str] = {
    "tensor": "one range for all tokens of a text",
    "static": "one range for all tokens, frozen from calibration",
    "token": "a range for each token",
}
FIRST: dict[str | None, str] = {
    None: "",
    "smooth": f"; outliers moved to weights first (α = {SMOOTH:g})",
    "rotated": "; rotated first",
    "duquant": "; smoothed, rotated towards the outliers and permuted first (DuQuant)",
}
OUTPUTS = "a range for each output"
WEIGHTS: dict[str | None, str] = {
    None: OUTPUTS,
    "gptq": f"{OUTPUTS}, each error made good by the inputs that are left (GPTQ)",
    "slim": f"on average, one more or less by salience in groups of at most {INPUTS} inputs (SliM-LLM)",
}
CACHES: dict[str, str] = {
    "token": "a range for each token and head",
    "kivi": f"keys by channel in groups of {GROUP} tokens, values by token, the open group in full precision",
    "head": "a range for each head, which grows with the text",
    "kvquant": "levels where the loss feels errors, keys by channel before rotation, 1 % of outliers aside (KVQuant)",
}


Make = Callable[[nn.Module, Mapping[str, Any], Protect | None], Intervention]
Store = Callable[[nn.Module, Protect | None], Cache]
Protects = Literal["served", "calibration", "nothing"]


@dataclass(frozen=True)
class QuantizationScheme:
    """A scheme by its name, and in a sentence what it does.

    Args:
        name: Its name.
        says: What it does, in a sentence.
        make: `make(model, calibration, protect)` gives the intervention. What it fits, it fits to these inputs without
            the protected tokens, so that calibration and serving agree.
        caches: Whether it rounds cached keys and values, which shows in what is read after they were written.
        store: `store(model, protect)` makes the real cache of such a scheme; None where there is only the simulation.
        protects: What it is to protect a token: it is not rounded when it is "served"; where weights alone are rounded,
            which know no tokens, it can be left out of "calibration", or there is "nothing" to leave it out of.
        fits: Whether it fits weights or ranges to calibration texts, on which it must then not be scored.
    """

    name: str
    says: str
    make: Make
    caches: bool = False
    store: Store | None = None
    protects: Protects = "served"
    fits: bool = False

    @property
    def rounds_activations(self) -> bool:
        """Whether what goes into linear maps is rounded, where outlying tokens set ranges."""
        return not self.caches and self.protects == "served"

    @classmethod
    def of(cls, scheme: QuantizationScheme | Intervention) -> QuantizationScheme:
        """A scheme as it is; for an intervention with a field `protect`, the scheme that fills that field.

        Raises `InputError` for an intervention that protects nothing.
        """
        if isinstance(scheme, QuantizationScheme):
            return scheme
        named = {field.name for field in fields(scheme)} if is_dataclass(scheme) else set()
        if not isinstance(scheme, Intervention) or "protect" not in named:
            raise InputError(
                f"{type(scheme).__name__} is no scheme: expected a name, a QuantizationScheme, or an intervention with "
                "a field 'protect', such as QuantizeLinear"
            )

        def make(model: nn.Module, calibration: Mapping[str, Any], protect: Protect | None) -> Intervention:
            return replace(scheme, protect=protect)  # type: ignore[call-arg]

        return cls(type(scheme).__name__, "an intervention as it is", make, caches={"keys", "values"} <= named)


def scheme_named(name: str, skip: Sequence[str] = ()) -> QuantizationScheme:
    """A scheme of the list, or of its grammar with other bits: w6a6-tensor, w3-gptq, kv3-head.

    `skip`: linear maps that stay as they are beside the head (`linear_maps`). Raises `InputError` for other names,
    naming the nearest, for bits outside 1 … 16, and for `skip` with a scheme of caches.
    """
    if found := LINEAR.fullmatch(name):
        weights, activations, ranges, first, rounding = found.groups()
        bits = None if activations is None else int(activations)
        return _Linear(name, int(weights), bits, ranges, first, rounding, tuple(skip)).scheme
    if found := COLUMNS.fullmatch(name):
        return _columns(name, float(found[1] or THRESHOLD), tuple(skip))
    if found := CACHED.fullmatch(name):
        if skip:
            raise InputError(f"{name} rounds what is cached, no linear map: leave out skip ({', '.join(skip)})")
        return _cached(name, int(found[1]), found[2])
    raise unknown("scheme", name, SCHEMES)


@dataclass(frozen=True)
class _Linear:
    """Linear maps: bits of weights and of activations, with what is done to both first, and how weights are rounded."""

    name: str
    weights: int
    activations: int | None
    ranges: str | None
    first: str | None
    rounding: str | None
    skip: tuple[str, ...]

    @property
    def scheme(self) -> QuantizationScheme:
        """The scheme. Raises `InputError` for bits that a grid, or a mixture of them, cannot have."""
        Grid(self.weights, symmetric=self.weights > 1)
        given = self._given
        if self.rounding == "slim" and not 2 <= self.weights < EXACT:
            raise InputError(
                f"{self.name} mixes {self.weights - 1}, {self.weights} and {self.weights + 1} bits: expected from 2 to "
                f"{EXACT - 1} on average"
            )
        says = f"weights of {self.weights} bits, {WEIGHTS[self.rounding]}"
        if given is not None:
            assert self.ranges is not None
            says += f"; activations of {given.bits} bits, {RANGES[self.ranges]}{FIRST[self.first]}"
            fits = self.rounding is not None or self.ranges == "static" or self.first in ("smooth", "duquant")
            return QuantizationScheme(self.name, says, self._make, fits=fits)
        protects: Protects = "nothing" if self.rounding is None else "calibration"
        return QuantizationScheme(
            self.name,
            f"{says}; activations as they are",
            self._make,
            protects=protects,
            fits=self.rounding is not None,
        )

    @property
    def _given(self) -> Grid | None:
        if self.activations is None:
            return None
        return Grid(self.activations, "token" if self.ranges == "token" else "tensor", symmetric=self.activations > 1)

    def _make(self, model: nn.Module, calibration: Mapping[str, Any], protect: Protect | None) -> Intervention:
        given = self._given
        if protect is not None and given is None and self.rounding is None:
            raise InputError(
                f"{self.name} rounds weights alone, the same for all tokens: protect a prefix, whose keys and "
                "values the full model made (--protect prefix:bos), or nothing (--protect none)"
            )
        skip = (HEAD, *self.skip)
        if given is not None or self.rounding is not None:
            skip = _skipped(model, calibration, self.skip)
        transform = self._transform(model, calibration, protect, skip)
        static = (
            calibrated(model, calibration, given, protect=protect, skip=skip, transform=transform)
            if given is not None and self.ranges == "static"
            else None
        )
        grid, rounding = self._weights(model, calibration, protect, skip, transform)
        served = None if given is None else protect
        return QuantizeLinear(
            grid, given, static=static, protect=served, skip=skip, transform=transform, rounding=rounding
        )

    def _transform(
        self, model: nn.Module, calibration: Mapping[str, Any], protect: Protect | None, skip: Sequence[str]
    ) -> Transform | None:
        if self.first == "smooth":
            return SmoothQuant.of(model, calibration, SMOOTH, protect=protect, skip=skip)
        if self.first == "duquant":
            return DuQuant.of(model, calibration, protect=protect, skip=skip)
        return RotateInputs(skip=skip) if self.first == "rotated" else None

    def _weights(
        self,
        model: nn.Module,
        calibration: Mapping[str, Any],
        protect: Protect | None,
        skip: Sequence[str],
        transform: Transform | None,
    ) -> tuple[Grid, Rounding | None]:
        plain = Grid(self.weights, symmetric=self.weights > 1)
        options: dict[str, Any] = {"protect": protect, "skip": skip, "transform": transform}
        if self.rounding == "gptq":
            return plain, GPTQ.of(model, calibration, **options)
        if self.rounding == "slim":
            return Grid(self.weights, group=_group(model, skip)), SliM.of(model, calibration, **options)
        return plain, None


def _columns(name: str, threshold: float, skip: tuple[str, ...]) -> QuantizationScheme:
    def make(model: nn.Module, calibration: Mapping[str, Any], protect: Protect | None) -> Intervention:
        return OutlyingColumns(threshold, protect, _skipped(model, calibration, skip))

    says = (
        f"inputs that reach {threshold:g} in any token of a text as they are, with their weights; the others of 8 "
        "bits, a range for each token and output (LLM.int8)"
    )
    return QuantizationScheme(name, says, make)


def _cached(name: str, bits: int, ranges: str) -> QuantizationScheme:
    says = f"cached keys and values of {bits} bits, {CACHES[ranges]}"
    if ranges == "kvquant":
        return _with_levels(name, bits, says)
    keys, values = Grid(bits), Grid(bits)
    if ranges == "kivi":
        keys = Grid(bits, "channel", group=GROUP)
    elif ranges == "head":
        keys, values = Grid(bits, "head"), Grid(bits, "head")

    def make(model: nn.Module, calibration: Mapping[str, Any], protect: Protect | None) -> Intervention:
        return QuantizeCache(keys, values, protect)

    def store(model: nn.Module, protect: Protect | None) -> Cache:
        return quantized_cache(model, keys, values, protect)

    stored = ranges != "head" and bits <= 8
    return QuantizationScheme(name, says, make, caches=True, store=store if stored else None)


def _with_levels(name: str, bits: int, says: str) -> QuantizationScheme:
    check_codebooks(bits, SHARE)

    def make(model: nn.Module, calibration: Mapping[str, Any], protect: Protect | None) -> Intervention:
        return QuantizeCache.of(find_codebooks(model, calibration, bits, protect=protect), protect)

    return QuantizationScheme(name, says, make, caches=True, fits=True)


def _group(model: nn.Module, skip: Sequence[str]) -> int:
    """The largest number of inputs, at most 128, that divides those of every map. Raises `InputError` for 1."""
    widths = sorted({one.weight.shape[-1] for one in linear_maps(model, skip).values()})
    found = block_of(gcd(*widths), INPUTS)
    if found == 1:
        raise InputError(
            f"maps of {', '.join(map(str, widths))} inputs have no groups of one size: leave some as they are (skip)"
        )
    return found


def _skipped(model: nn.Module, inputs: Mapping[str, Any], skip: Sequence[str]) -> tuple[str, ...]:
    """The head, `skip`, and maps that are never called though their block is: their weight is read directly.

    What goes into those cannot be quantized; a `UserWarning` names them.
    """
    used: set[str] = set()
    every = linear_maps(model, (HEAD, *skip))
    maps = {path: one for path, one in every.items() if not (one.routed or one.stacked or one.crosses)}
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
    return (HEAD, *skip, *unused)


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
    "w4a4-token-duquant",
    "llm-int8",
    "w4",
    "w4-gptq",
    "w3-slim",
    "kv4-token",
    "kv2-token",
    "kv4-kivi",
    "kv2-kivi",
    "kv3-head",
    "kv2-head",
    "kv3-kvquant",
)
SCHEMES: dict[str, QuantizationScheme] = {name: scheme_named(name) for name in NAMES}
