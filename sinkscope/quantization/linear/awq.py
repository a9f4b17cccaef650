"""AWQ: inputs that are large on average get finer steps of the weights (Lin et al. 2024b)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.errors import InputError
from sinkscope.grids import Grid, fake_quantize
from sinkscope.quantization.linear.maps import HEAD, linear_maps
from sinkscope.quantization.linear.norms import SharedInput
from sinkscope.quantization.linear.quantize import weight_grid
from sinkscope.quantization.linear.smoothing import foldable, rescale
from sinkscope.quantization.linear.tokens import check_read, read_inputs
from sinkscope.quantization.linear.transform import Transform
from sinkscope.quantization.protected import Protect, described

STEPS = 20  # exponents that are tried: 0, 1/20, …, 19/20
SMALLEST = 1e-4


@dataclass(frozen=True, eq=False)
class AWQ(Transform):
    """x → x / s and W → W s with s = a^r / √(max a^r · min a^r), a_j the mean |x_j| over tokens. Made by `AWQ.of`.

    r is the one of 0, .05, …, .95 with the least Σ |W x − Q(W s) (x / s)|² over calibration tokens and over all maps
    that read x; a^r is at least 1e-4. With r = 0 nothing changes, so no set of maps gets worse on these texts.

    The sum is exact, from the second moments of x. Differences from the released code (mit-han-lab/llm-awq,
    awq/quantize/auto_scale.py): it compares the outputs of the whole attention or feed-forward module after maps that
    share x, here the maps' own; it folds 1 / s into the map before where that has as many outputs, here all divisions
    without a norm happen at run time, with the same result; its search of clipped ranges is not done. Stacked experts
    share the s of all their tokens.

    Control: the same factors on other channels. `protect`: the choice of tokens that calibration left out, as data.
    """

    ratios: Mapping[str, float]
    scales: Mapping[str, Float[Tensor, "in"]] = field(repr=False)
    shared: Sequence[SharedInput] = field(repr=False)
    seed: int | None = None
    protect: Mapping[str, Any] | None = None

    @classmethod
    def of(
        cls,
        model: nn.Module,
        inputs: Any,
        grid: Grid,
        *,
        protect: Protect | str | None = None,
        skip: Sequence[str] = (HEAD,),
        batch_size: int = 8,
    ) -> AWQ:
        """Searched for weights on `grid`, on all real, unprotected tokens of `inputs`.

        Args:
            model: Any transformers model.
            inputs: Calibration texts, as in `measure`.
            grid: What weights will be rounded to.
            protect: Tokens that calibration leaves out; None: none.
            skip: Maps to leave out, as in `linear_maps`.
            batch_size: Samples per pass.

        Raises `InputError` for maps that no token reached, and for groups that do not divide a map's inputs.
        """
        maps = linear_maps(model, skip)
        sums: dict[str, tuple[Any, Any, int]] = {}

        def read(path: str, rows: Tensor, experts: Tensor | None) -> None:
            if len(rows):
                wide = rows.double()
                size, product, count = sums.get(path, (0.0, 0.0, 0))
                sums[path] = size + wide.abs().sum(0), product + wide.T @ wide, count + len(rows)

        for one in maps.values():
            weight_grid(grid, one.weight).cut(one.weight)  # raises before anything is read
        read_inputs(model, inputs, maps.values(), read, protect, None, batch_size)
        check_read(maps, sums)
        ratios: dict[str, float] = {}
        scales: dict[str, Tensor] = {}
        shared = foldable(model, inputs, maps)
        for source in shared:
            size, product, count = (sum(part) for part in zip(*(sums[path] for path in source.maps), strict=True))
            weights = [maps[path].weight.detach() for path in source.maps]
            ratio, scale = best_scale(weights, size / count, product, grid)
            ratios |= dict.fromkeys(source.maps, ratio)
            scales |= dict.fromkeys(source.maps, scale.to(weights[0]))
        return cls(ratios, scales, shared, protect=described(protect))

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        rescale(model, self.shared, self.scales, self.seed, "AWQ", stack)

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> AWQ:
        return replace(self, seed=int(torch.randint(2**31, (1,), generator=generator)))

    def describe(self) -> dict[str, Any]:
        return {"name": "AWQ", "ratios": dict(self.ratios), "seed": self.seed, "protect": self.protect}


def best_scale(
    weights: Sequence[Tensor],
    size: Float[Tensor, "in"],
    moments: Float[Tensor, "in in"],
    grid: Grid,
) -> tuple[float, Float[Tensor, "in"]]:
    """The exponent r and the factors s with the least Σ |(W − Q(W s) / s) x|², summed over weights that read x.

    `weights`: (…, out, in) each; `size`: the mean |x|; `moments`: Σ x xᵀ, so that Σ |D x|² = Σ_o D_o M D_oᵀ. The first
    of equal exponents wins.
    """
    if not float(size.max()) > 0:
        return 0.0, torch.ones_like(size)
    best: tuple[float, float, Tensor] | None = None
    for step in range(STEPS):
        scale = size.pow(step / STEPS).clamp(min=SMALLEST)
        scale = scale / (scale.max() * scale.min()).sqrt()
        error = 0.0
        for weight in weights:
            factors = scale.to(weight)  # as served, in the weight's dtype
            change = (fake_quantize(weight * factors, weight_grid(grid, weight)) / factors - weight).double()
            error += float(((change @ moments.to(change)) * change).sum())
        if best is None or error < best[0]:
            best = error, step / STEPS, scale
    assert best is not None
    # If the first error is NaN, no later one is less, so it is still there.
    if not torch.isfinite(torch.tensor(best[0])):
        raise InputError("AWQ: the errors of its search are not finite: check the model's activations")
    return best[1], best[2]
