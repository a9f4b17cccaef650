"""Quantization schemes by name: one registry for the command line, the documentation and trials.

The package's own names follow a grammar (`w6a6-tensor`, `w3-gptq`, `kv3-head`); `@sinkscope.scheme` adds others.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, partial
from math import gcd
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import Cache

from sinkscope.caches import ENGINES
from sinkscope.errors import InputError, unknown
from sinkscope.grids import (
    E2M1_MAX,
    E4M3_MAX,
    EXACT,
    SHARE,
    Fp8,
    Fp8Rows,
    Grid,
    LloydMax,
    MinMax,
    MxFp4,
    Numbers,
    NvFp4,
    Rotated,
    RowFormat,
    check_codebooks,
    inner_of,
)
from sinkscope.hooks import checked_inputs, device_of, evaluating, part, without_cache
from sinkscope.interventions import Intervention
from sinkscope.quantization.kv import QuantizeCache, calibrated_scales, find_codebooks, quantized_cache
from sinkscope.quantization.linear import (
    AWQ,
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
from sinkscope.quantization.linear.quantize import TokenRanges
from sinkscope.quantization.protected import Protect, resolved_for_passes
from sinkscope.registry import Registry, check_kind, dashed, imported, taking

LINEAR = re.compile(
    r"w(?P<weights>\d+)"
    r"(?:a(?P<activations>\d+)-(?P<ranges>tensor|static|token)(?:-(?P<first>smooth|rotated|duquant))?)?"
    r"(?:-(?P<rounding>gptq|slim|awq))?(?:-g(?P<group>\d+))?(?P<asymmetric>-asym)?"
)
ACTIVATIONS, WHOLE = re.compile(r"a\d+-"), 16  # activations alone, and the bits that leave weights as they are
COLUMNS = re.compile(r"llm-int8(?:-(\d+(?:\.\d+)?))?")
CACHED = re.compile(r"kv(?P<bits>\d+)-(?P<ranges>token|kivi|head|kvquant)(?P<rotated>-rotated)?")
SERVED = re.compile(
    r"(?P<format>(?:fp8|nvfp4)(?:-calibrated)?|fp8_per_token_head|nvfp4_4over6|q8_0|q5_[01]|q4_[01]|iq4_nl"
    r"|turboquant_(?:k8v4|4bit_nc|k3v4_nc|3bit_nc))(?P<rotated>-rotated|-unrotated)?(?P<all>-all)?"
)
GROUP = 32  # tokens that share the range of a key channel, as in KIVI
INPUTS = 128  # inputs of an output that share bits and a range, at most, as in SliM-LLM
SMOOTH = 0.5  # α of SmoothQuant
THRESHOLD = 6.0  # of LLM.int8

RANGES: dict[str | None, str] = {
    "tensor": "one range for all tokens of a text",
    "static": "one range for all tokens, frozen from calibration",
    "token": "one range per token",
}
FIRST: dict[str | None, str] = {
    None: "",
    "smooth": f"; outliers moved to the weights first (α = {SMOOTH:g})",
    "rotated": "; rotated first",
    "duquant": "; smoothed, rotated towards the outliers and permuted first (DuQuant)",
}
WEIGHTS: dict[str | None, str] = {
    None: "",
    "gptq": ", each error compensated by the remaining inputs (GPTQ)",
    "awq": ", inputs that are large on average on finer steps (AWQ)",
    "slim": f" on average, one more or less by salience in groups of at most {INPUTS} inputs (SliM-LLM)",
}
CACHES: dict[str, str] = {
    "token": "one range per token and head",
    "kivi": f"keys by channel in groups of {GROUP} tokens, values by token, the open group in full precision",
    "head": "one range per head, which grows with the text",
    "kvquant": "levels placed by the loss's sensitivity, keys by channel before rotation, 1 % outliers apart (KVQuant)",
}


Make = Callable[[nn.Module, Mapping[str, Any], Protect | None], Intervention]
Store = Callable[[nn.Module, Protect | None], Cache]
Protects = Literal["served", "calibration", "nothing"]


@dataclass(frozen=True)
class QuantizationScheme:
    """A named way to quantize a model.

    Args:
        name: Its name.
        says: What it does, in one sentence.
        make: `make(model, calibration, protect)` returns the intervention. Whatever it fits, it fits to these inputs
            without the protected tokens, so that calibration and serving agree.
        caches: Whether it rounds cached keys and values; its cost then shows in what is read after they were cached.
        store: `store(model, protect)` makes the real cache of such a scheme; None if there is only the simulation.
        protects: What protecting a token means: it stays in full precision when it is "served"; a scheme that rounds
            weights alone knows no tokens, so it can only be left out of "calibration", or of "nothing".
        fits: Whether it fits weights or ranges to calibration texts, on which it must then not be scored.
    """

    name: str
    says: str
    make: Make
    caches: bool = False
    store: Store | None = None
    protects: Protects = "served"
    fits: bool = False

    def on(self, model: nn.Module, calibration: Mapping[str, Any]) -> Callable[[Protect | None], Intervention]:
        """`make` for one model and its calibration texts, what does not depend on protected tokens computed once.

        By `make.on`, where there is such a method.
        """
        shared = getattr(self.make, "on", None)
        return partial(self.make, model, calibration) if shared is None else shared(model, calibration)

    @property
    def rounds_activations(self) -> bool:
        """Whether the inputs of linear maps are rounded, so that outlying tokens set ranges."""
        return not self.caches and self.protects == "served"

    @property
    def maker(self) -> Any:
        """The class or function that was registered."""
        return getattr(self.make, "maker", self.make)

    @classmethod
    def of(cls, scheme: QuantizationScheme | Intervention) -> QuantizationScheme:
        """A scheme unchanged; for an intervention with a field `protect`, the scheme that fills this field.

        Raises `InputError` for anything else.
        """
        if isinstance(scheme, QuantizationScheme):
            return scheme
        names = {field.name for field in fields(scheme)} if is_dataclass(scheme) else set()
        if not isinstance(scheme, Intervention) or "protect" not in names:
            raise InputError(
                f"{type(scheme).__name__} is not a scheme: expected a name, a QuantizationScheme, or an intervention "
                "with a field 'protect', such as QuantizeLinear"
            )
        return cls(type(scheme).__name__, "an intervention", _Protecting(scheme), caches={"keys", "values"} <= names)


@dataclass(frozen=True, eq=False)
class _Protecting:
    """Makes an intervention with other protected tokens."""

    intervention: Intervention

    def __call__(self, model: nn.Module, calibration: Mapping[str, Any], protect: Protect | None) -> Intervention:
        return replace(self.intervention, protect=protect)  # type: ignore[call-arg]

    @property
    def maker(self) -> type[Intervention]:
        return type(self.intervention)


def scheme_named(name: str, skip: Sequence[str] = ()) -> QuantizationScheme:
    """A registered scheme, one of the grammar (w6a6-tensor, w3-gptq, w4-g128-asym, kv3-head), or a `module:Name`.

    a8-tensor is w16a8-tensor: activations are rounded, weights stay as they are.

    `skip`: linear maps that stay in full precision, besides the head (`linear_maps`). Raises `InputError` for unknown
    names, with the nearest one, for bits outside 1…16, and for `skip` with a scheme that has no use for it.
    """
    if match := LINEAR.fullmatch(f"w{WHOLE}{name}" if ACTIVATIONS.match(name) else name):
        return _linear(name, match, tuple(skip)).scheme
    if name in FORMATS:
        return _formatted(name, tuple(skip))
    if match := COLUMNS.fullmatch(name):
        return _columns(name, float(match[1] or THRESHOLD), tuple(skip))
    cached, served = CACHED.fullmatch(name), SERVED.fullmatch(name)
    if skip and (cached or served):
        raise InputError(f"{name} rounds the cache, no linear map: leave out skip ({', '.join(skip)})")
    if cached:
        return _cached(name, int(cached["bits"]), cached["ranges"], cached["rotated"] is not None)
    if served and (scheme := _served(name, served["format"], served["rotated"], served["all"] is not None)):
        return scheme
    if ":" in name:
        return _skipping(_as_scheme(imported(name), name.rpartition(":")[2]), skip)
    if name not in SCHEMES:
        raise unknown("scheme", name, SCHEMES)
    return _skipping(SCHEMES[name], skip)


@taking("scheme")
def scheme(thing: Any, **options: Any) -> Any:
    """Register a quantization scheme: `@sinkscope.scheme`, or `@sinkscope.scheme("its-name", fits=True)`.

    It decorates a function `(model, calibration, protect) -> Intervention`, whose docstring's first line says what it
    does, or a class of interventions with a field `protect`, taken with its defaults; called with a
    `QuantizationScheme`, it registers that. Then the name works in `sinkscope quantize --scheme its-name`,
    `quantization.scheme_named`, and `trials.scheme_trial`. Without a name, `four_bits` and `FourBits` are called
    `four-bits`. A function with a parameter `skip` gets the linear maps that `--skip` names.

    `options`: `caches`, `store`, `protects` and `fits` of `QuantizationScheme`. Raises `InputError` for anything else,
    and for a name that is taken.
    """
    if isinstance(thing, str):
        return lambda decorated: _register(decorated, thing, options)
    return _register(thing, None, options)


def _register(thing: Any, name: str | None, options: Mapping[str, Any]) -> Any:
    made = _as_scheme(thing, name, options)
    if name is None and any(known.maker is made.maker for known in SCHEMES.added.values()):
        return thing  # under the name that it has
    if any(pattern.fullmatch(made.name) for pattern in (LINEAR, COLUMNS, CACHED, SERVED)) or made.name in FORMATS:
        raise InputError(f"scheme '{made.name}' is a name of sinkscope's own grammar: choose another name")
    SCHEMES.add(made.name, made)
    return thing


def _as_scheme(thing: Any, name: str | None, options: Mapping[str, Any] = {}) -> QuantizationScheme:
    """The scheme that a decorated class or function stands for."""
    try:
        if isinstance(thing, QuantizationScheme):
            return replace(thing, **{"name": thing.name if name is None else name, **options})
        if isinstance(thing, type):
            check_kind(thing, Intervention, "scheme", "its name stands for it with its defaults")
            made = QuantizationScheme.of(thing())
            return replace(
                made,
                **{"name": dashed(thing.__name__) if name is None else name, "says": _first_line(thing), **options},
            )
        if callable(thing):
            by_default = dashed(getattr(thing, "__name__", type(thing).__name__))
            return QuantizationScheme(by_default if name is None else name, _first_line(thing), thing, **options)
    except TypeError as error:  # an option that no scheme has
        raise InputError(f"scheme {name or getattr(thing, '__name__', thing)}: {error}") from error
    raise InputError(
        "@sinkscope.scheme decorates a function (model, calibration, protect) -> Intervention, or a class of "
        f"interventions with a field 'protect'; got {thing!r}"
    )


def _first_line(thing: Any) -> str:
    lines = (inspect.getdoc(thing) or "").splitlines()
    return lines[0].removesuffix(".") if lines else getattr(thing, "__name__", "a scheme")


def _skipping(entry: QuantizationScheme, skip: Sequence[str]) -> QuantizationScheme:
    if not skip:
        return entry
    if "skip" not in inspect.signature(entry.make).parameters:
        raise InputError(f"{entry.name} does not take linear maps to skip: leave out skip ({', '.join(skip)})")
    make: Callable[..., Intervention] = entry.make
    return replace(entry, make=partial(make, skip=tuple(skip)))


def _linear(name: str, match: re.Match[str], skip: tuple[str, ...]) -> _Linear:
    groups = match.groupdict()
    activations, group = groups["activations"], groups["group"]
    return _Linear(
        name,
        int(groups["weights"]),
        None if activations is None else int(activations),
        groups["ranges"],
        groups["first"],
        groups["rounding"],
        None if group is None else int(group),
        groups["asymmetric"] is not None,
        skip,
    )


@dataclass(frozen=True)
class _Linear:
    """Linear maps: bits of weights and activations, what transforms both first, and how weights are rounded."""

    name: str
    weights: int
    activations: int | None
    ranges: str | None
    first: str | None
    rounding: str | None
    group: int | None
    asymmetric: bool
    skip: tuple[str, ...]

    @property
    def scheme(self) -> QuantizationScheme:
        """The scheme. Raises `InputError` for bits that a grid, or a mixture of grids, cannot have."""
        weights, inputs = self._weight_grid, self._input_grid
        if self.rounding == "slim":
            if not 2 <= self.weights < EXACT:
                raise InputError(
                    f"{self.name} mixes {self.weights - 1}, {self.weights} and {self.weights + 1} bits: expected from "
                    f"2 to {EXACT - 1} on average"
                )
            if self.group is not None or self.asymmetric:
                raise InputError(f"{self.name}: SliM-LLM's groups are asymmetric and its own; leave out -g and -asym")
            says = f"weights of {self.weights} bits{WEIGHTS['slim']}"
        elif self.rounding == "awq" and self.first is not None:
            raise InputError(f"{self.name}: AWQ rescales inputs itself; leave out -{self.first}")
        else:
            shares = "one range per output" if self.group is None else f"one range per {self.group} inputs of an output"
            shares += "" if weights.symmetric or self.weights == 1 else ", asymmetric"
            says = f"weights of {self.weights} bits, {shares}{WEIGHTS[self.rounding]}"
        fits = self.rounding is not None
        if inputs is None:
            protects: Protects = "calibration" if fits else "nothing"
            says += "; activations in full precision"
            return QuantizationScheme(self.name, says, self, protects=protects, fits=fits)
        says += f"; activations of {inputs.bits} bits, {RANGES[self.ranges]}{FIRST[self.first]}"
        fits = fits or self.ranges == "static" or self.first in ("smooth", "duquant")
        return QuantizationScheme(self.name, says, self, fits=fits)

    @property
    def _weight_grid(self) -> Grid:
        return Grid(self.weights, group=self.group, symmetric=self.weights > 1 and not self.asymmetric)

    @property
    def _input_grid(self) -> Grid | None:
        if self.activations is None:
            return None
        return Grid(self.activations, "token" if self.ranges == "token" else "tensor", symmetric=self.activations > 1)

    def __call__(self, model: nn.Module, calibration: Mapping[str, Any], protect: Protect | None) -> Intervention:
        return self._made(model, calibration, protect, self._left_whole(model, calibration))

    def on(self, model: nn.Module, calibration: Mapping[str, Any]) -> Callable[[Protect | None], Intervention]:
        """The maps to leave out, and frozen ranges of each token where no transform is fitted first, are found once."""
        grid = self._input_grid
        plain = self.ranges == "static" and self.first in (None, "rotated") and self.rounding is None

        @cache
        def found() -> tuple[tuple[str, ...], TokenRanges | None]:
            skip = self._left_whole(model, calibration)
            if grid is None or not plain:
                return skip, None
            transform = self._transform(model, calibration, None, skip)
            return skip, TokenRanges.of(model, calibration, grid, skip, transform)

        return lambda protect: self._made(model, calibration, protect, *found())

    def _left_whole(self, model: nn.Module, calibration: Mapping[str, Any]) -> tuple[str, ...]:
        if self._input_grid is not None or self.rounding is not None:
            return _skipped(model, calibration, self.skip)
        return HEAD, *self.skip

    def _made(
        self,
        model: nn.Module,
        calibration: Mapping[str, Any],
        protect: Protect | None,
        skip: tuple[str, ...],
        ranges: TokenRanges | None = None,
    ) -> Intervention:
        inputs = self._input_grid
        if protect is not None and inputs is None and self.rounding is None:
            raise InputError(_weights_alone(self.name))
        transform = self._transform(model, calibration, protect, skip) if ranges is None else ranges.transform
        static = None
        if ranges is not None:
            static = ranges.static(resolved_for_passes(protect, model, calibration))
        elif inputs is not None and self.ranges == "static":
            static = calibrated(model, calibration, inputs, protect=protect, skip=skip, transform=transform)
        grid, rounding = self._weights(model, calibration, protect, skip, transform)
        served = None if inputs is None else protect
        return QuantizeLinear(
            grid, inputs, static=static, protect=served, skip=skip, transform=transform, rounding=rounding
        )

    def _transform(
        self, model: nn.Module, calibration: Mapping[str, Any], protect: Protect | None, skip: Sequence[str]
    ) -> Transform | None:
        if self.rounding == "awq":
            return AWQ.of(model, calibration, self._weight_grid, protect=protect, skip=skip)
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
        options: dict[str, Any] = {"protect": protect, "skip": skip, "transform": transform}
        if self.rounding == "gptq":
            return self._weight_grid, GPTQ.of(model, calibration, **options)
        if self.rounding == "slim":
            return Grid(self.weights, group=_slim_group(model, skip)), SliM.of(model, calibration, **options)
        return self._weight_grid, None


FORMATS: dict[str, tuple[RowFormat, RowFormat | None, str]] = {
    "w8a8-fp8": (
        Fp8Rows(),
        Fp8Rows(),
        "weights in E4M3, one scale per output; activations in E4M3, one scale per token",
    ),
    "w8a8-fp8-tensor": (
        Fp8(None),
        Fp8Rows(),
        "weights in E4M3, one scale per matrix; activations in E4M3, one scale per token",
    ),
    "w4-mxfp4": (MxFp4(), None, "weights in E2M1 in blocks of 32 inputs with a power of two each"),
    "w4-nvfp4": (NvFp4(None), None, "weights in E2M1 in blocks of 16 inputs with E4M3 scales, and a scale per matrix"),
}
"""Weights, activations and what they are: llm-compressor's FP8_DYNAMIC, the same by matrix, MXFP4A16, NVFP4A16."""


def _formatted(name: str, skip: tuple[str, ...]) -> QuantizationScheme:
    weights, activations, says = FORMATS[name]

    def make(model: nn.Module, calibration: Mapping[str, Any], protect: Protect | None) -> Intervention:
        if protect is not None and activations is None:
            raise InputError(_weights_alone(name))
        left = (HEAD, *skip) if activations is None else _skipped(model, calibration, skip)
        return QuantizeLinear(weights, activations, protect=protect, skip=left)

    says += "" if activations is not None else "; activations in full precision"
    return QuantizationScheme(name, says, make, protects="nothing" if activations is None else "served")


def _weights_alone(name: str) -> str:
    return (
        f"{name} rounds weights alone, which are the same for all tokens: protect a Prefix, whose keys and values come "
        "from the full-precision model, or nothing"
    )


def _columns(name: str, threshold: float, skip: tuple[str, ...]) -> QuantizationScheme:
    def make(model: nn.Module, calibration: Mapping[str, Any], protect: Protect | None) -> Intervention:
        return OutlyingColumns(threshold, protect, _skipped(model, calibration, skip))

    says = (
        f"inputs that reach {threshold:g} in any token of a text, and their weights, in full precision; all others in "
        "8 bits, one range per token and per output (LLM.int8)"
    )
    return QuantizationScheme(name, says, make)


def _cached(name: str, bits: int, ranges: str, rotated: bool) -> QuantizationScheme:
    says = f"cached keys and values of {bits} bits, {CACHES[ranges]}"
    if ranges == "kvquant":
        if rotated:
            raise InputError(f"{name}: levels are fitted to keys before rotation by position; leave out -rotated")
        return _with_codebooks(name, bits, says)
    keys, values = Grid(bits), Grid(bits)
    if ranges == "kivi":
        keys = Grid(bits, "channel", group=GROUP)
    elif ranges == "head":
        keys, values = Grid(bits, "head"), Grid(bits, "head")
    says += "; both multiplied by Hadamard matrices first" if rotated else ""
    sides = (Rotated(keys), Rotated(values)) if rotated else (keys, values)
    return _of_numbers(name, says, *sides, stored=ranges != "head" and bits <= 8)


def _of_numbers(
    name: str, says: str, keys: Numbers, values: Numbers, *, ends: int = 0, stored: bool = True
) -> QuantizationScheme:
    """A scheme of caches: the same numbers in a simulation and in a real cache."""

    def make(model: nn.Module, calibration: Mapping[str, Any], protect: Protect | None) -> Intervention:
        return QuantizeCache(keys, values, protect, ends=ends)

    def store(model: nn.Module, protect: Protect | None) -> Cache:
        return quantized_cache(model, keys, values, protect, ends=ends)

    return QuantizationScheme(name, says, make, caches=True, store=store if stored else None)


SERVED_SAYS = {
    "fp8": "E4M3 with scale 1.0 (vLLM: --kv-cache-dtype fp8)",
    "fp8-calibrated": "E4M3 with a scale per layer, from calibration (vLLM: fp8 with k_scale and v_scale)",
    "fp8_per_token_head": "E4M3 with a scale per token and head (vLLM)",
    "nvfp4": "E2M1 in blocks of 16 with E4M3 scales (vLLM)",
    "nvfp4-calibrated": "E2M1 in blocks of 16 with E4M3 scales, and a scale per layer from calibration (vLLM)",
    "nvfp4_4over6": "E2M1 in blocks of 16 with E4M3 scales, the better of two for each block (vLLM)",
    "q8_0": "8 bits in blocks of 32, rotated (llama.cpp: -ctk q8_0 -ctv q8_0)",
    "q5_1": "5 bits and a minimum in blocks of 32, rotated (llama.cpp: -ctk q5_1 -ctv q5_1)",
    "q5_0": "5 bits in blocks of 32, rotated (llama.cpp: -ctk q5_0 -ctv q5_0)",
    "q4_1": "4 bits and a minimum in blocks of 32, rotated (llama.cpp: -ctk q4_1 -ctv q4_1)",
    "iq4_nl": "16 unequal levels in blocks of 32, rotated (llama.cpp: -ctk iq4_nl -ctv iq4_nl)",
    "q4_0": "4 bits in blocks of 32, rotated (llama.cpp: -ctk q4_0 -ctv q4_0)",
    "turboquant_k8v4": "keys in E4M3, values of 4 bits; the first and last two layers whole (vLLM)",
    "turboquant_4bit_nc": "keys rotated, on 16 levels; values of 4 bits; the first and last two layers whole (vLLM)",
    "turboquant_k3v4_nc": "keys rotated, on 8 levels; values of 4 bits; the first and last two layers whole (vLLM)",
    "turboquant_3bit_nc": "keys rotated, on 8 levels; values of 3 bits; the first and last two layers whole (vLLM)",
}
TURBOQUANT: dict[str, tuple[Numbers, Numbers]] = {
    "turboquant_k8v4": (Fp8(), MinMax(4)),
    "turboquant_4bit_nc": (Rotated(LloydMax(4)), MinMax(4)),
    "turboquant_k3v4_nc": (Rotated(LloydMax(3)), MinMax(4)),
    "turboquant_3bit_nc": (Rotated(LloydMax(3)), MinMax(3)),
}
ENDS = 2  # first and last layers that vLLM's TurboQuant leaves alone


def _served(name: str, kind: str, rotated: str | None, everywhere: bool) -> QuantizationScheme | None:
    """A cache as vLLM or llama.cpp has it, by its own name; None for a suffix that means nothing there.

    `-rotated` and `-unrotated` are what the engine does not do by default, `-all` leaves no layer alone.
    """
    turbo, ggml = kind in TURBOQUANT, ENGINES.get(f"llama.cpp-{kind}")
    if everywhere != (everywhere and turbo) or rotated == ("-rotated" if turbo or ggml else "-unrotated"):
        return None
    says = f"cached keys and values: {SERVED_SAYS[kind]}"
    says = says.replace("the first and last two layers whole", "every layer") if everywhere else says
    says += {"-rotated": "; rotated first", "-unrotated": "; without the rotation", None: ""}[rotated]
    if kind.endswith("-calibrated"):
        return _calibrated(name, says, kind, rotated is not None)
    plain: RowFormat = Fp8Rows() if kind == "fp8_per_token_head" else Fp8()
    plain = NvFp4(four_over_six=kind.endswith("4over6")) if kind.startswith("nvfp4") else plain
    sides: tuple[Numbers, Numbers] = TURBOQUANT[kind] if turbo else (plain, plain)
    if ggml is not None and ggml.numbers is not None:
        sides = ggml.numbers
    if rotated == "-rotated":
        sides = Rotated(plain), Rotated(plain)
    elif rotated == "-unrotated":
        sides = inner_of(sides[0]), inner_of(sides[1])
    return _of_numbers(name, says, *sides, ends=ENDS if turbo and not everywhere else 0)


def _calibrated(name: str, says: str, kind: str, rotated: bool) -> QuantizationScheme:
    """FP8 or NVFP4 whose scales are fitted to calibration texts: only simulated, since a cache knows no texts."""
    four = kind.startswith("nvfp4")

    def make(model: nn.Module, calibration: Mapping[str, Any], protect: Protect | None) -> Intervention:
        top = E4M3_MAX * (E2M1_MAX if four else 1)
        scales = calibrated_scales(model, calibration, top, protect=protect, rotated=rotated)
        sides: list[Numbers] = [NvFp4(each) if four else Fp8(each) for each in scales]
        keys, values = [Rotated(side) for side in sides] if rotated else sides  # type: ignore[arg-type]
        return QuantizeCache(keys, values, protect)

    return QuantizationScheme(name, says, make, caches=True, fits=True)


def _with_codebooks(name: str, bits: int, says: str) -> QuantizationScheme:
    check_codebooks(bits, SHARE)

    def make(model: nn.Module, calibration: Mapping[str, Any], protect: Protect | None) -> Intervention:
        return QuantizeCache.of(find_codebooks(model, calibration, bits, protect=protect), protect)

    return QuantizationScheme(name, says, make, caches=True, fits=True)


def _slim_group(model: nn.Module, skip: Sequence[str]) -> int:
    """The largest group of at most 128 inputs that divides the inputs of each map. Raises `InputError` for 1."""
    widths = sorted({one.weight.shape[-1] for one in linear_maps(model, skip).values()})
    size = block_of(gcd(*widths), INPUTS)
    if size == 1:
        raise InputError(f"maps of {', '.join(map(str, widths))} inputs share no group size: name some in skip")
    return size


def _skipped(model: nn.Module, inputs: Mapping[str, Any], skip: Sequence[str]) -> tuple[str, ...]:
    """The head, `skip`, and maps that are never called although their block runs: their weight is read directly.

    Their inputs cannot be quantized; a `UserWarning` names these maps.
    """
    used: set[str] = set()
    maps = {
        path: one
        for path, one in linear_maps(model, (HEAD, *skip)).items()
        if not (one.routed or one.stacked or one.crosses)
    }
    checked, samples = checked_inputs(model, inputs)
    with ExitStack() as stack, evaluating(model), torch.no_grad():
        for path, one in maps.items():
            one.edit_input(partial(_note_use, used, path), stack)
        model(**part(checked, slice(0, 1), samples, device_of(model)), **without_cache(model))
    unused = sorted(maps.keys() - used)
    if unused:
        more = f" and {len(unused) - 3} more" if len(unused) > 3 else ""
        warnings.warn(
            f"left as they are: {', '.join(unused[:3])}{more}; their weights are read directly, so their inputs "
            "cannot be quantized",
            UserWarning,
            stacklevel=5,
        )
    return (HEAD, *skip, *unused)


def _note_use(used: set[str], path: str, x: Tensor, routing: object) -> Tensor:
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
    "w4-g32-asym",
    "w4-g128",
    "w4-awq-g128-asym",
    "w4-gptq",
    "w3-slim",
    "kv4-token",
    "kv2-token",
    "kv4-kivi",
    "kv2-kivi",
    "kv3-head",
    "kv2-head",
    "kv3-kvquant",
    "kv4-token-rotated",
    "kv4-kivi-rotated",
    *FORMATS,
    *SERVED_SAYS,
)
SCHEMES: Registry[QuantizationScheme] = Registry("scheme")
SCHEMES.own.update({name: scheme_named(name) for name in NAMES})
