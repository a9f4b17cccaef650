"""Linear maps with quantized weights and quantized inputs, while a context lasts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sinkscope.errors import InputError
from sinkscope.grids import (
    Grid,
    RowFormat,
    Steps,
    check_finite,
    described_numbers,
    fake_quantize,
    steps_of,
    straight_through,
)
from sinkscope.hooks import Stream, checked_inputs, unwrapped
from sinkscope.interventions import Intervention
from sinkscope.model.columns import TokenColumns, columns_of
from sinkscope.quantization.linear.experts import Routing
from sinkscope.quantization.linear.maps import HEAD, LinearMap, linear_maps
from sinkscope.quantization.linear.tokens import LeftAlone, check_read, read_inputs
from sinkscope.quantization.linear.transform import Transform, check_unrounded
from sinkscope.quantization.protected import Protect, among, described, random_tokens
from sinkscope.registry import renamed_argument


class Rounding(ABC):
    """How a weight is brought onto a grid, if not by rounding each entry to the nearest value.

    `transform`: the transform that was active during calibration.
    """

    transform: Transform | None

    @abstractmethod
    def rounded(
        self, path: str, weight: Float[Tensor, "*expert out in"], grid: Grid
    ) -> Float[Tensor, "*expert out in"]:
        """The weight on the grid. Raises `InputError` for a map that calibration did not cover."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """As JSON-able data."""


@dataclass(frozen=True, eq=False)
class Static:
    """Frozen ranges of each map's input, from calibration inputs (static quantization). Made by `calibrated`.

    `protect`: the choice of tokens that calibration left out, as data; `transform`: the transform that was active.
    """

    grid: Grid
    steps: Mapping[str, Steps]
    protect: Mapping[str, Any] | None = None
    transform: Transform | None = None

    def of(self, path: str) -> Steps:
        """The range of one map. Raises `InputError` if calibration did not cover it."""
        if path not in self.steps:
            raise InputError(f"no range was calibrated for '{path}': calibrate this model with the same skip")
        return self.steps[path]

    def describe(self) -> dict[str, Any]:
        """The grid, the tokens left out, and the step of each map."""
        steps = {path: float(steps.step) for path, steps in self.steps.items()}
        return {"grid": asdict(self.grid), "protect": self.protect, "steps": steps}


@renamed_argument("spared", "protect")
@dataclass(frozen=True)
class QuantizeLinear(Intervention):
    """y = Q_w(W) Q_a(x) + b in all linear maps of the blocks: simulated quantization.

    W is rounded once, when the context opens, and is exactly what it was when it closes; where a weight is tied
    (embeddings), the other use stays in full precision. The ranges of x are computed in each pass: over "token" for
    each token alone; over "tensor" for each row of the batch, so that the result of a text does not depend on its batch
    (in stacked experts: for a row's tokens in all experts of the layer). Padding is part of no range.

    Control: as many random tokens protected in each row. Raises `InputError` if nothing is protected, so that there is
    no control, and `UnsupportedModelError` for maps that cannot be reached (`linear_maps`). Source: uniform
    quantization as in Jacob et al. 2018; per-token and per-output scales as in Dettmers et al. 2022.

    Attributes:
        weights: The grid of W (out, in): one range per output ("token"), per input ("channel"), or per `group` of
            inputs of an output; or a format that stores the inputs of each output (`grids.RowFormat`: FP8, MXFP4). Each
            of stacked experts is a separate tensor.
        activations: The grid of x (batch, position, in), over "token" or "tensor", or a format that stores each token;
            None for weights alone.
        static: Frozen ranges of x (`calibrated`).
        protect: Tokens whose x stays in full precision and is part of no range: a choice, its words ("first:4"), or
            `Tokens`. Anything else is an `InputError` when it is applied.
        skip: Maps that stay in full precision (`linear_maps`).
        transform: A change of x that W undoes, made before both are rounded, such as `SmoothQuant`.
        rounding: How W is brought onto its grid; None for the nearest value.
        per_call: One range for all rows of a call, as in kernels with a single scale.
    """

    weights: Grid | RowFormat
    activations: Grid | RowFormat | None = None
    static: Static | None = None
    protect: Protect | str | None = None
    skip: Sequence[str] = (HEAD,)
    transform: Transform | None = None
    rounding: Rounding | None = None
    per_call: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "skip", (self.skip,) if isinstance(self.skip, str) else tuple(self.skip))
        if self.activations is None and (self.protect is not None or self.static is not None):
            raise InputError(
                "protect and static concern the inputs of maps: give activations=Grid(...), or leave both out"
            )
        over = self._over
        if over not in (None, "token", "tensor"):
            raise InputError(
                f"activations over '{over}': kernels have no scale per channel or head of a map's "
                "input; use over='token' or 'tensor'"
            )
        if self.per_call and (self.static is not None or over != "tensor"):
            raise InputError("per_call shares one range among all rows: give activations over 'tensor', and no static")
        if self.static is not None and self.static.grid != self.activations:
            raise InputError(f"static was calibrated for {self.static.grid}, but activations is {self.activations}")
        if self.rounding is not None and not isinstance(self.weights, Grid):
            raise InputError(f"{type(self.rounding).__name__} rounds weights on a grid: give weights=Grid(...)")
        for what, made in (("static ranges", self.static), ("weights", self.rounding)):
            if made is not None and made.transform is not self.transform:
                raise InputError(
                    f"{what} were calibrated under another transform: calibrate with transform=..., and give the same "
                    "object here"
                )

    @property
    def _over(self) -> str | None:
        """What shares a range of x; a format stores each token by itself."""
        if self.activations is None:
            return None
        return self.activations.over if isinstance(self.activations, Grid) else "token"

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        maps = linear_maps(model, self.skip)
        check_unrounded(maps.values())
        # First: edits run in the order in which they are added, and `one.weight` below is then the transformed W.
        if self.transform is not None:
            self.transform.attach(model, stack)
        if self.activations is not None and not _exact(self.activations):
            alone = LeftAlone(model, self.protect, stack)
            for one in maps.values():
                one.edit_input(self._edit(one, alone), stack)
                alone.uses.require(one)
        if not _exact(self.weights):
            for one in maps.values():
                one.replace(self._rounded(one), stack, rounded=True)

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> QuantizeLinear:
        return replace(self, protect=random_tokens(self.protect, generator, model, inputs))

    def describe(self) -> dict[str, Any]:
        parts = {name: getattr(self, name) for name in ("static", "transform", "rounding")}
        return {
            "name": "QuantizeLinear",
            "weights": described_numbers(self.weights),
            "activations": None if self.activations is None else described_numbers(self.activations),
            "skip": list(self.skip),
            "per_call": self.per_call,
            "protect": described(self.protect),
            **{name: None if value is None else value.describe() for name, value in parts.items()},
        }

    def _rounded(self, one: LinearMap) -> Tensor:
        weight = one.weight
        if not isinstance(self.weights, Grid):
            return _in_format(weight, self.weights)
        grid = weight_grid(self.weights, weight)
        if self.rounding is None:
            return fake_quantize(weight, grid)
        return straight_through(weight, self.rounding.rounded(one.path, weight.detach(), grid).to(weight.dtype))

    def _edit(self, one: LinearMap, alone: LeftAlone) -> Any:
        grid = self.activations
        assert grid is not None
        static = None if self.static is None else self.static.of(one.path)
        by_token = self._over == "token" and self.protect is None  # each token has its own range, padding too

        def edit(x: Tensor, routing: Routing | None) -> Tensor:
            alone.uses.used(one)
            left = None if by_token else alone.rows(one, x, routing)
            if not isinstance(grid, Grid):
                # Formats saturate, which would turn an infinite number into a plain one.
                check_finite(x, left)
                return grid.rounded(x) if left is None else torch.where(left, x, grid.rounded(x))
            if static is not None or grid.over == "token" or self.per_call:
                return fake_quantize(x, grid, left, static)
            return row_by_row(x, grid, left, alone.texts(one, x, routing))

        return edit


def _exact(numbers: Grid | RowFormat) -> bool:
    return isinstance(numbers, Grid) and numbers.exact


def _in_format(weight: Float[Tensor, "*expert out in"], numbers: RowFormat) -> Float[Tensor, "*expert out in"]:
    """W as a format stores it, with a scale of its own for each matrix if the format leaves it open."""
    check_finite(weight.detach())
    if weight.ndim == 2:
        return numbers.fitted(weight).rounded(weight)
    return torch.stack([numbers.fitted(matrix).rounded(matrix) for matrix in weight])


def row_by_row(
    x: Float[Tensor, "..."], grid: Grid, left: Tensor | None, texts: Int[Tensor, " first"] | None
) -> Float[Tensor, "..."]:
    """x with one range per row of the batch: its first axis, or the row that `texts` gives for each entry of it.

    Entries where `left` (broadcast to x) is True are part of no range and stay unchanged.
    """
    # (batch, position, in): a range over the last two axes is one range per row.
    if texts is None and x.ndim == 3:
        return fake_quantize(x, replace(grid, over="head"), left)
    texts = torch.arange(len(x), device=x.device) if texts is None else texts
    left = None if left is None else left.expand(x.shape)
    rounded = torch.empty_like(x)  # each entry of the first axis has a text, so all of it is written
    for text in texts.unique():
        rows = texts == text
        rounded[rows] = fake_quantize(x[rows], grid, None if left is None else left[rows])
    return rounded


@renamed_argument("spared", "protect")
def calibrated(
    model: nn.Module,
    inputs: Any,
    grid: Grid,
    *,
    protect: Protect | str | None = None,
    skip: Sequence[str] = (HEAD,),
    transform: Transform | None = None,
    batch_size: int = 8,
) -> Static:
    """The ranges of each map's input over all real tokens of `inputs`, for a grid over "tensor".

    The minimum and maximum over all batches, not a running mean.

    Args:
        model: Any transformers model.
        inputs: Calibration texts, as in `measure`.
        grid: What inputs will be rounded to.
        protect: Tokens that are part of no range; whether they are protected later is up to the quantizer. None: none.
        skip: Maps to leave out, as in `linear_maps`.
        transform: Is active meanwhile; None: none.
        batch_size: Samples per pass.

    Raises `InputError` for other grids, and for a map that no token reached.
    """
    if grid.over != "tensor":
        raise InputError(f"a static range is shared by all tokens: give a grid over 'tensor', not '{grid.over}'")
    ranges: dict[str, tuple[Tensor, Tensor]] = {}

    def read(path: str, rows: Tensor, experts: Tensor | None) -> None:
        if len(rows):
            low, high = rows.float().amin(), rows.float().amax()
            before = ranges.get(path, (low, high))
            ranges[path] = torch.minimum(before[0], low), torch.maximum(before[1], high)

    maps = linear_maps(model, skip)
    read_inputs(model, inputs, maps.values(), read, protect, transform, batch_size)
    check_read(maps, ranges)
    return _static({path: torch.stack(ranges[path]) for path in maps}, grid, described(protect), transform)


@dataclass(frozen=True, eq=False)
class TokenRanges:
    """The ends of every token at the input of each map: frozen ranges without any tokens, from one pass.

    `static(protect)` equals `calibrated(…, protect=protect)` bit for bit. Holds 8 bytes per token and map.

    `columns`: of the calibration texts; `ends`: the lowest and the highest entry of each real token, row by row.
    """

    columns: TokenColumns
    ends: Mapping[str, Float[Tensor, "end token"]]
    grid: Grid
    transform: Transform | None

    @classmethod
    def of(
        cls,
        model: nn.Module,
        inputs: Any,
        grid: Grid,
        skip: Sequence[str] = (HEAD,),
        transform: Transform | None = None,
        batch_size: int = 8,
    ) -> TokenRanges | None:
        """None for a model with maps that are not given each token of its texts once, such as those of experts."""
        maps, axis = linear_maps(model, skip), Stream.of(model).axis
        if any(one.routed or one.stacked or one.axis != axis for one in maps.values()):
            return None
        parts: dict[str, list[Tensor]] = {path: [] for path in maps}

        def read(path: str, rows: Tensor, experts: Tensor | None) -> None:
            numbers = rows.float()
            parts[path].append(torch.stack((numbers.amin(-1), numbers.amax(-1))).cpu())

        read_inputs(model, inputs, maps.values(), read, None, transform, batch_size)
        columns = columns_of(model, checked_inputs(unwrapped(model), inputs, batch_size)[0])
        ends = {path: torch.cat(read, 1) for path, read in parts.items() if read}
        check_read(maps, ends)
        tokens = int(columns.real.sum())
        return cls(columns, ends, grid, transform) if all(one.shape[1] == tokens for one in ends.values()) else None

    def static(self, protect: Protect | None) -> Static:
        """The ranges without these tokens. Raises as `calibrated` does."""
        real = self.columns.real.cpu()
        kept = torch.ones(int(real.sum()), dtype=torch.bool)
        if protect is not None:
            kept = ~among(protect, self.columns).cpu()[real]
        check_read(self.ends, self.ends if bool(kept.any()) else ())
        ranges = {path: torch.stack((low[kept].amin(), high[kept].amax())) for path, (low, high) in self.ends.items()}
        return _static(ranges, self.grid, described(protect), self.transform)


def _static(
    ranges: Mapping[str, Tensor], grid: Grid, protect: Mapping[str, Any] | None, transform: Transform | None
) -> Static:
    """Frozen ranges by the two ends of each map's input, which stand for all its tokens."""
    steps = {path: steps_of(ends, grid) for path, ends in ranges.items()}
    steps = {path: Steps(one.step[0], None if one.low is None else one.low[0]) for path, one in steps.items()}
    return Static(grid, steps, protect, transform)


def weight_grid(grid: Grid, weight: Tensor) -> Grid:
    """The grid of one weight: each of stacked experts (expert, out, in) is a separate tensor."""
    return replace(grid, over="head") if grid.over == "tensor" and weight.ndim > 2 else grid
