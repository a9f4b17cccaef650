"""Linear maps with quantized weights, and with what goes into them quantized, while a block lasts."""

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
from sinkscope.grids import Grid, Steps, fake_quantize, steps_of, straight_through
from sinkscope.interventions import Intervention
from sinkscope.quantization.linear.experts import Routing
from sinkscope.quantization.linear.maps import HEAD, LinearMap, linear_maps
from sinkscope.quantization.linear.tokens import LeftAlone, check_read, read_inputs
from sinkscope.quantization.linear.transform import Transform, check_unrounded
from sinkscope.quantization.protected import (
    Protect,
    described,
    random_tokens,
)
from sinkscope.registry import renamed_argument


class Rounding(ABC):
    """How a weight is brought onto a grid, other than each entry to its nearest value.

    `transform`: under which its calibration ran.
    """

    transform: Transform | None

    @abstractmethod
    def rounded(
        self, path: str, weight: Float[Tensor, "*expert out in"], grid: Grid
    ) -> Float[Tensor, "*expert out in"]:
        """The weight on the grid. Raises `InputError` for a map that it was not calibrated for."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """The rounding as JSON-able data."""


@dataclass(frozen=True, eq=False)
class Static:
    """Ranges of what goes into each map, frozen from calibration inputs (static quantization). Made by `calibrated`.

    `protect`: the choice of tokens that were no part of the ranges, as data; `transform`: under which they were taken.
    """

    grid: Grid
    steps: Mapping[str, Steps]
    protect: Mapping[str, Any] | None = None
    transform: Transform | None = None

    def of(self, path: str) -> Steps:
        """The range of one map. Raises `InputError` where none was calibrated."""
        if path not in self.steps:
            raise InputError(f"no scale was calibrated for '{path}': calibrate this model, with the same skip")
        return self.steps[path]

    def describe(self) -> dict[str, Any]:
        """What it was made of, and the step of each map."""
        steps = {path: float(steps.step) for path, steps in self.steps.items()}
        return {"grid": asdict(self.grid), "protect": self.protect, "steps": steps}


@renamed_argument("spared", "protect")
@dataclass(frozen=True)
class QuantizeLinear(Intervention):
    """y = Q_w(W) Q_a(x) + b in every linear map of the blocks: simulated quantization.

    `weights`: the grid of W (out, in), where "token" gives each output its range, "channel" each input, and a `group`
    of "token" cuts the inputs; of stacked experts each is a tensor of its own. W is rounded once when the block begins
    and is exactly what it was afterwards; weights that are tied elsewhere (embeddings) stay as they are there.
    `activations`: the grid of x (batch, position, in), None for weights alone. Its ranges are found in each pass: over
    "token" for each token alone; over "tensor" for each row of the batch, so that a text's result does not depend on
    its batch (in stacked experts: for a row's tokens in all experts of the layer). `per_call`: one range for all rows
    of a call instead, as kernels with one scale have it. Padding counts for no range. `static`: ranges frozen
    beforehand (`calibrated`). `protect`: tokens whose x stays in full precision and counts for no range. `skip`: maps
    that stay as they are (`linear_maps`). `transform`: what is done to x and undone in W before both are rounded, such
    as `SmoothQuant`; `rounding`: how W is brought onto its grid, None for the nearest value.

    Control: as many random tokens protected in each row. Raises `InputError` where nothing is protected, so that there
    is none, and `UnsupportedModelError` for what cannot be reached (`linear_maps`). Source: uniform quantization as in
    Jacob et al. 2018; per-token and per-output scales as in Dettmers et al. 2022.
    """

    weights: Grid
    activations: Grid | None = None
    static: Static | None = None
    protect: Protect | None = None
    skip: Sequence[str] = (HEAD,)
    transform: Transform | None = None
    rounding: Rounding | None = None
    per_call: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "skip", (self.skip,) if isinstance(self.skip, str) else tuple(self.skip))
        if self.activations is None and (self.protect is not None or self.static is not None):
            raise InputError(
                "tokens are protected, and scales frozen, in what goes into a map: give activations=Grid(...), or "
                "leave protect and static out"
            )
        if self.activations is not None and self.activations.over not in ("token", "tensor"):
            raise InputError(
                f"activations over '{self.activations.over}': no kernel has a scale for each channel or head of what "
                "goes into a map; take over='token' or 'tensor'"
            )
        if self.per_call and (self.static is not None or self.activations is None or self.activations.over != "tensor"):
            raise InputError("per_call shares one range among all rows: it needs activations over 'tensor', not frozen")
        if self.static is not None and self.static.grid != self.activations:
            raise InputError(f"static scales are of {self.static.grid}, but activations are {self.activations}")
        for what, made in (("static scales", self.static), ("the rounding", self.rounding)):
            if made is not None and made.transform is not self.transform:
                raise InputError(
                    f"{what} and the quantizer have different transforms, so they are of other numbers: calibrate with "
                    "transform=... and give the same one here"
                )

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        maps = linear_maps(model, self.skip)
        check_unrounded(maps.values())
        if self.transform is not None:
            self.transform.attach(model, stack)
        if self.activations is not None and not self.activations.exact:
            alone = LeftAlone(model, self.protect, stack)
            for one in maps.values():
                one.edit_input(self._edit(one, alone), stack)
                alone.uses.require(one)
        if not self.weights.exact:
            for one in maps.values():
                one.replace(self._rounded(one), stack, rounded=True)

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> QuantizeLinear:
        return replace(self, protect=random_tokens(self.protect, generator, model, inputs))

    def describe(self) -> dict[str, Any]:
        parts = {name: getattr(self, name) for name in ("static", "transform", "rounding")}
        return {
            "name": "QuantizeLinear",
            "weights": asdict(self.weights),
            "activations": None if self.activations is None else asdict(self.activations),
            "skip": list(self.skip),
            "per_call": self.per_call,
            "protect": described(self.protect),
            **{name: None if part is None else part.describe() for name, part in parts.items()},
        }

    def _rounded(self, one: LinearMap) -> Tensor:
        weight = one.weight
        grid = weight_grid(self.weights, weight)
        if self.rounding is None:
            return fake_quantize(weight, grid)
        return straight_through(weight, self.rounding.rounded(one.path, weight.detach(), grid).to(weight.dtype))

    def _edit(self, one: LinearMap, alone: LeftAlone) -> Any:
        grid = self.activations
        assert grid is not None
        static = None if self.static is None else self.static.of(one.path)
        by_token = grid.over == "token" and self.protect is None  # then nobody else's numbers matter

        def edit(x: Tensor, routing: Routing | None) -> Tensor:
            alone.uses.used(one)
            left = None if by_token else alone.rows(one, x, routing)
            if static is not None or grid.over == "token" or self.per_call:
                return fake_quantize(x, grid, left, static)
            return row_by_row(x, grid, left, alone.texts(one, x, routing))

        return edit


def row_by_row(
    x: Float[Tensor, "..."], grid: Grid, left: Tensor | None, texts: Int[Tensor, " first"] | None
) -> Float[Tensor, "..."]:
    """x with a range for each row of the batch: along the first axis, or where `texts` says which row it is of.

    Entries where `left` (broadcast to x) is True count for no range and stay as they are.
    """
    if texts is None and x.ndim == 3:
        return fake_quantize(x, replace(grid, over="head"), left)
    texts = torch.arange(len(x), device=x.device) if texts is None else texts
    left = None if left is None else left.expand(x.shape)
    found = torch.empty_like(x)
    for text in texts.unique():
        own = texts == text
        found[own] = fake_quantize(x[own], grid, None if left is None else left[own])
    return found


@renamed_argument("spared", "protect")
def calibrated(
    model: nn.Module,
    inputs: Any,
    grid: Grid,
    *,
    protect: Protect | None = None,
    skip: Sequence[str] = (HEAD,),
    transform: Transform | None = None,
    batch_size: int = 8,
) -> Static:
    """Ranges over all real tokens of `inputs` for what goes into each map, of a grid over "tensor".

    The smallest and the largest value of all batches, not a running mean of them. `protect`: tokens that are no part of
    a range; whether they are protected when it is used is said there. Raises `InputError` for other grids, and for a
    map that no token reached.
    """
    if grid.over != "tensor":
        raise InputError(f"a static range is one number for all tokens: give a grid over 'tensor', not '{grid.over}'")
    found: dict[str, tuple[Tensor, Tensor]] = {}

    def read(path: str, rows: Tensor, experts: Tensor | None) -> None:
        if len(rows):
            low, high = rows.float().amin(), rows.float().amax()
            before = found.get(path, (low, high))
            found[path] = torch.minimum(before[0], low), torch.maximum(before[1], high)

    maps = linear_maps(model, skip)
    read_inputs(model, inputs, maps.values(), read, protect, transform, batch_size)
    check_read(maps, found)
    steps = {path: steps_of(torch.stack(found[path]), grid) for path in maps}
    steps = {path: Steps(one.step[0], None if one.low is None else one.low[0]) for path, one in steps.items()}
    return Static(grid, steps, described(protect), transform)


def weight_grid(grid: Grid, weight: Tensor) -> Grid:
    """The grid of one weight: of stacked experts (expert, out, in) each is a tensor of its own."""
    return replace(grid, over="head") if grid.over == "tensor" and weight.ndim > 2 else grid
