"""GPTQ: weights rounded one input at a time, each error compensated by the remaining inputs (Frantar et al. 2023)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.errors import InputError
from sinkscope.grids import Grid, Steps, decode, encode, steps_of
from sinkscope.quantization.linear.maps import HEAD, linear_maps
from sinkscope.quantization.linear.quantize import Rounding
from sinkscope.quantization.linear.tokens import check_read, read_inputs
from sinkscope.quantization.linear.transform import Transform
from sinkscope.quantization.protected import Protect
from sinkscope.registry import renamed_argument

BLOCK = 128  # inputs whose errors are passed on in one product
DAMP = 0.01

Fit = Callable[[int, Float[Tensor, "out n"]], tuple[Grid, Steps]]


@dataclass(frozen=True, eq=False)
class GPTQ(Rounding):
    """W rounded for small Σ |(W − Q) x|² instead of small |W − Q|². Made by `GPTQ.of`.

    With H = 2/n Σ x xᵀ + damp · mean(diag H) · I over calibration tokens and U the upper Cholesky factor of H⁻¹ (H⁻¹ =
    Uᵀ U): column i is rounded to q, and (w_i − q) U_ij / U_ii is subtracted from each later column j. Ranges are those
    of the original W; with groups, those of W as it is when the group begins.

    Differences from the released code: H is that of the full-precision model, not of the model with earlier blocks
    quantized; inputs that are always 0 are rounded to the nearest value, where the code sets their weights to 0. Each
    of stacked experts has the H of its own tokens. Source: Frantar et al. 2023; IST-DASLab/gptq, gptq.py.
    """

    hessians: Mapping[str, Sequence[Float[Tensor, "in in"]]] = field(repr=False)
    damp: float = DAMP
    transform: Transform | None = None

    @classmethod
    @renamed_argument("spared", "protect")
    def of(
        cls,
        model: nn.Module,
        inputs: Any,
        damp: float = DAMP,
        *,
        protect: Protect | str | None = None,
        skip: Sequence[str] = (HEAD,),
        transform: Transform | None = None,
        batch_size: int = 8,
    ) -> GPTQ:
        """Calibrated on all real, unprotected tokens of `inputs`.

        Args:
            model: Any transformers model.
            inputs: Calibration texts, as in `measure`.
            damp: Share of the mean of H's diagonal that is added to it.
            protect: Tokens that calibration leaves out; None: none.
            skip: Maps to leave out, as in `linear_maps`.
            transform: Is active meanwhile, so that H is that of the transformed inputs; None: none.
            batch_size: Samples per pass.

        Raises `InputError` if no token reaches a map, and for a damping that is not positive and finite.
        """
        if not 0 < damp < float("inf"):
            raise InputError(
                f"damp = {damp}: expected a positive, finite share of the mean of H's diagonal, such as {DAMP}"
            )
        maps = linear_maps(model, skip)
        counts = {path: len(one.weight) if one.stacked else 1 for path, one in maps.items()}
        sums: dict[str, list[Any]] = {}

        def read(path: str, rows: Tensor, experts: Tensor | None) -> None:
            for number, expert_rows in by_expert(rows, experts, counts[path]):
                # In fp64: a sum over all calibration tokens, which is inverted later.
                product = expert_rows.double().T @ expert_rows.double()
                total = sums.setdefault(path, [(0, 0)] * counts[path])
                total[number] = total[number][0] + product, total[number][1] + len(expert_rows)

        read_inputs(model, inputs, maps.values(), read, protect, transform, batch_size)
        check_read(maps, sums)
        widths = {path: one.weight.shape[-1] for path, one in maps.items()}
        hessians = {path: [_mean(pair, widths[path]) for pair in total] for path, total in sums.items()}
        return cls(hessians, damp, transform)

    def rounded(
        self, path: str, weight: Float[Tensor, "*expert out in"], grid: Grid
    ) -> Float[Tensor, "*expert out in"]:
        if path not in self.hessians:
            raise InputError(f"GPTQ was not calibrated for '{path}': calibrate this model with the same skip")
        if weight.ndim == 2:
            return gptq(weight, self.hessians[path][0], grid, self.damp)
        one_grid = replace(grid, over="tensor") if grid.over == "head" else grid  # each expert is a tensor
        each = zip(weight, self.hessians[path], strict=True)
        return torch.stack([gptq(matrix, hessian, one_grid, self.damp) for matrix, hessian in each])

    def describe(self) -> dict[str, Any]:
        return {"name": "GPTQ", "damp": self.damp}


def gptq(
    weight: Float[Tensor, "out in"], hessian: Float[Tensor, "in in"], grid: Grid, damp: float = DAMP
) -> Float[Tensor, "out in"]:
    """One weight on a grid over "token" (per output, with or without groups of inputs) or "tensor".

    Raises `InputError` for other grids, since rounding column by column needs the range of each output in advance, and
    for an H that has no inverse with `damp`.
    """
    if grid.over not in ("token", "tensor"):
        raise InputError(f"GPTQ rounds weights over 'token' (each output) or 'tensor', not over '{grid.over}'")
    grid.cut(weight)  # raises for groups that do not divide the inputs
    whole = steps_of(weight.float(), grid) if grid.group is None else None
    # `compensated` asks for one group at a time, whose steps need no group axis.
    plain = replace(grid, group=None)

    def fit(start: int, columns: Float[Tensor, "out n"]) -> tuple[Grid, Steps]:
        return plain, steps_of(columns, plain) if whole is None else whole

    return compensated(weight, inverse_factor(hessian, damp), fit, grid.group or BLOCK)


def compensated(
    weight: Float[Tensor, "out in"], upper: Float[Tensor, "in in"], fit: Fit, group: int
) -> Float[Tensor, "out in"]:
    """W rounded column by column, on the grid that `fit(start, columns)` gives for each group of inputs.

    Within a group, the error of a column is subtracted from the columns after it at once; the columns after the group
    get the errors of all its columns in one product.
    """
    # Row j of U, up to a factor, is the first row of the inverse of H restricted to inputs j, j + 1, …: what each step
    # needs once the inputs before j are fixed. So one factorization replaces an inverse per column.
    left, rounded = weight.to(torch.float64, copy=True), torch.empty_like(weight)  # `left` is written to
    for start in range(0, weight.shape[1], group):
        columns = slice(start, min(start + group, weight.shape[1]))
        grid, steps = fit(start, left[:, columns].float())
        errors = torch.zeros_like(left[:, columns])
        for column in range(columns.start, columns.stop):
            column_weights = left[:, column : column + 1]
            value = decode(encode(column_weights.float(), steps, grid), steps, grid)  # in fp32, as without GPTQ
            error = (column_weights - value) / upper[column, column]
            left[:, column + 1 : columns.stop] -= error * upper[column, column + 1 : columns.stop]
            errors[:, column - start] = error[:, 0]
            rounded[:, column] = value[:, 0].to(rounded)
        left[:, columns.stop :] -= errors @ upper[columns, columns.stop :]
    return rounded


def inverse_factor(hessian: Float[Tensor, "in in"], damp: float) -> Float[Tensor, "in in"]:
    """Upper U with Uᵀ U = (H + damp · mean(diag H) · I)⁻¹; zeros on the diagonal of H (inputs always 0) count as 1.

    Raises `InputError` if there is no inverse, as after few calibration tokens with a very small `damp`.
    """
    damped = hessian.double().clone()
    diagonal = damped.diagonal()  # a view: what is written to it is written to `damped`
    diagonal[diagonal == 0] = 1
    diagonal += damp * diagonal.mean()
    try:
        return torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(damped)), upper=True)
    except torch.linalg.LinAlgError:
        raise InputError(
            f"damp = {damp}: H of a map with {len(damped)} inputs has no inverse with it: give a larger share, such as "
            f"{DAMP}, or more calibration tokens"
        ) from None


def by_expert(rows: Tensor, experts: Tensor | None, count: int) -> list[tuple[int, Tensor]]:
    """The rows of each expert; all rows as expert 0 if experts are not stacked."""
    if experts is None:
        return [(0, rows)]
    return [(number, rows[experts == number]) for number in range(count)]


def _mean(summed: tuple[Any, int], width: int) -> Tensor:
    product, count = summed
    # An expert without tokens has H = 0: all of its inputs count as always 0 and are rounded to the nearest value.
    return 2 / count * product if count else torch.zeros(width, width, dtype=torch.float64)
