"""Groups of a weight with more and with fewer bits, by their salience (SliM-LLM, Huang et al. 2024)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from sinkscope.errors import InputError
from sinkscope.grids import Grid, Steps, decode, encode, steps_of
from sinkscope.quantization.linear.gptq import DAMP, GPTQ, by_expert, compensated, inverse_factor
from sinkscope.quantization.linear.maps import HEAD, linear_maps
from sinkscope.quantization.linear.quantize import Rounding
from sinkscope.quantization.linear.tokens import read_inputs
from sinkscope.quantization.linear.transform import Transform
from sinkscope.quantization.protected import Protect
from sinkscope.registry import renamed_argument

ROWS = 256  # of calibration tokens that bits are chosen on
SALIENT = 2.0  # standard deviations above the mean of a group's salience
SHRINKS = (1.0, *(1 + sign * 0.1 * step / 50 for sign in (1, -1) for step in range(1, 51)))
NORM = 2.4


@dataclass(frozen=True, eq=False)
class SliM(Rounding):
    """GPTQ with N − 1, N or N + 1 bits per group of inputs, as many groups with fewer bits as with more. By `SliM.of`.

    The salience of a group is Σ w² / U_jj² over its entries, U as in `GPTQ`. For i = 0, 1, …, the i groups of least
    salience get N − 1 bits and the i of most salience N + 1; the i with the least KL(softmax(x Qᵀ) ‖ softmax(x Wᵀ)) on
    calibration tokens is used, Q rounded to the nearest value. The average stays N bits. The range of each output in a
    group is then scaled by the p in 0.9…1.1 with the least Σ |error|^2.4, in which salient entries (more than 2
    standard deviations above the mean) count `salient` times: 1 as released, where they count like all others. One bit
    encodes mean ± mean distance from it.

    One damping, 1 % of H's mean diagonal; the released code uses 0.01 itself for the choice of bits. i = 0 and the
    largest i are tried too. Grids need a `group` of inputs. Source: Huang et al. 2024; Aaronhuang-778/SliM-LLM,
    slim-llm/slim_gptq.py and utils.
    """

    hessians: Mapping[str, Sequence[Float[Tensor, "in in"]]] = field(repr=False)
    samples: Mapping[str, Sequence[Float[Tensor, "_ in"]]] = field(repr=False)  # as many rows as an expert got
    damp: float = DAMP
    salient: float = 1.0
    transform: Transform | None = None

    @classmethod
    @renamed_argument("spared", "protect")
    def of(
        cls,
        model: nn.Module,
        inputs: Any,
        damp: float = DAMP,
        *,
        salient: float = 1.0,
        protect: Protect | str | None = None,
        skip: Sequence[str] = (HEAD,),
        transform: Transform | None = None,
        batch_size: int = 8,
    ) -> SliM:
        """Calibrated as `GPTQ.of`; bits are chosen on the first 256 tokens that each map gets.

        Other arguments as in `GPTQ.of`.

        Args:
            salient: How much salient entries count in the choice of ranges; 1: as much as others.
        """
        options: dict[str, Any] = {"protect": protect, "skip": skip, "transform": transform, "batch_size": batch_size}
        hessians = GPTQ.of(model, inputs, damp, **options).hessians
        maps = linear_maps(model, skip)
        # The entries of a list are one tensor, which is replaced and never written to.
        samples = {path: [torch.empty(0, one.weight.shape[-1])] * len(hessians[path]) for path, one in maps.items()}

        def read(path: str, rows: Tensor, experts: Tensor | None) -> None:
            for number, expert_rows in by_expert(rows, experts, len(samples[path])):
                before = samples[path][number]
                samples[path][number] = torch.cat([before.to(expert_rows), expert_rows[: ROWS - len(before)]])

        read_inputs(model, inputs, maps.values(), read, protect, transform, batch_size)
        return cls(hessians, samples, damp, salient, transform)

    def rounded(
        self, path: str, weight: Float[Tensor, "*expert out in"], grid: Grid
    ) -> Float[Tensor, "*expert out in"]:
        each = zip(self._matrices(weight), self.bits(path, weight, grid), self.hessians[path], strict=True)
        matrices = [self._matrix(matrix, bits, hessian, grid) for matrix, bits, hessian in each]
        return matrices[0] if weight.ndim == 2 else torch.stack(matrices)

    def bits(self, path: str, weight: Float[Tensor, "*expert out in"], grid: Grid) -> tuple[tuple[int, ...], ...]:
        """The bits of each group of inputs, for each matrix of the map."""
        if path not in self.hessians:
            raise InputError(f"SliM-LLM was not calibrated for '{path}': calibrate this model with the same skip")
        if grid.over != "token" or grid.group is None:
            raise InputError("SliM-LLM chooses bits per group of inputs: give a grid over 'token' with group=...")
        grid.cut(weight)
        each = zip(self._matrices(weight), self.hessians[path], self.samples[path], strict=True)
        return tuple(
            chosen_bits(
                matrix.float(), salience(matrix, inverse_factor(hessian, self.damp), grid.group), rows.float(), grid
            )
            for matrix, hessian, rows in each
        )

    def describe(self) -> dict[str, Any]:
        return {"name": "SliM", "damp": self.damp, "salient": self.salient}

    def _matrix(self, weight: Tensor, bits: Sequence[int], hessian: Tensor, grid: Grid) -> Tensor:
        assert grid.group is not None
        group, upper = grid.group, inverse_factor(hessian, self.damp)

        def fit(start: int, columns: Float[Tensor, "out n"]) -> tuple[Grid, Steps]:
            group_grid = replace(grid, bits=bits[start // group], group=None)
            sizes = columns.double() ** 2 / upper.diagonal()[start : start + group] ** 2
            return group_grid, fitted_steps(columns, group_grid, salient_entries(sizes), self.salient)

        return compensated(weight, upper, fit, group)

    @staticmethod
    def _matrices(weight: Tensor) -> list[Tensor]:
        return [weight] if weight.ndim == 2 else list(weight)


def salience(weight: Float[Tensor, "out in"], upper: Float[Tensor, "in in"], group: int) -> Float[Tensor, "group"]:
    """Σ w² / U_jj² over the entries of each group of inputs."""
    return (weight.double() ** 2 / upper.diagonal() ** 2).sum(0).unflatten(0, (-1, group)).sum(-1)


def chosen_bits(
    weight: Float[Tensor, "out in"], sizes: Float[Tensor, "group"], rows: Float[Tensor, "row in"], grid: Grid
) -> tuple[int, ...]:
    """The mixture of N − 1, N and N + 1 bits, N on average, with the least divergence on `rows`."""
    tried = mixtures(sizes, grid.bits)
    target = (rows @ weight.T).log_softmax(-1)

    def divergence(bits: Sequence[int]) -> float:
        predicted = (rows @ _nearest(weight, bits, grid).T).log_softmax(-1)
        return float((predicted.exp() * (predicted - target)).sum(-1).mean())

    return tried[0] if not len(rows) else min(tried, key=divergence)  # without tokens, N bits everywhere


def mixtures(sizes: Float[Tensor, "group"], bits: int) -> list[tuple[int, ...]]:
    """The bits of each group, with the i of least salience at bits − 1 and the i of most at bits + 1, for each i."""
    order = sizes.argsort().tolist()
    all_bits = []
    # At most half of the groups at either end, so that none gets both fewer and more bits.
    for count in range(len(order) // 2 + 1):
        low, high = set(order[:count]), set(order[len(order) - count :])
        all_bits.append(tuple(bits - (at in low) + (at in high) for at in range(len(order))))
    return all_bits


def salient_entries(sizes: Float[Tensor, "out in"]) -> Bool[Tensor, "out in"]:
    """Entries of a group whose salience exceeds the mean by more than two standard deviations."""
    return sizes > sizes.mean() + SALIENT * sizes.std()


def fitted_steps(weight: Float[Tensor, "out in"], grid: Grid, salient: Bool[Tensor, "out in"], times: float) -> Steps:
    """The range of each output, scaled by the p with the least Σ |error|^2.4; salient entries count `times` times."""
    if grid.bits == 1:
        return binary_steps(weight)
    whole = steps_of(weight, grid)
    counts = torch.where(salient, times, 1.0)
    best, fitted = None, whole
    # 1 is tried first and only a smaller error replaces it, so ties leave the range as it is.
    for shrink in SHRINKS:
        tried = Steps(whole.step * shrink, None if whole.low is None else whole.low * shrink)  # from p · min to p · max
        error = (decode(encode(weight, tried, grid), tried, grid) - weight).abs() ** NORM
        error = (error * counts).sum(-1, keepdim=True)
        better = torch.ones_like(error).bool() if best is None else error < best
        best = error if best is None else torch.minimum(best, error)
        low = None if tried.low is None or fitted.low is None else torch.where(better, tried.low, fitted.low)
        fitted = Steps(torch.where(better, tried.step, fitted.step), low)
    return fitted


def binary_steps(weight: Float[Tensor, "out in"]) -> Steps:
    """Two values per output: its mean minus and plus the mean distance from it."""
    mean = weight.mean(-1, keepdim=True)
    distance = (weight - mean).abs().mean(-1, keepdim=True)
    return Steps(2 * distance, mean - distance)


def _nearest(weight: Tensor, bits: Sequence[int], grid: Grid) -> Tensor:
    assert grid.group is not None
    parts = []
    for group_bits, columns in zip(bits, weight.split(grid.group, dim=-1), strict=True):
        plain = replace(grid, bits=group_bits, group=None)
        steps = binary_steps(columns) if group_bits == 1 else steps_of(columns, plain)
        parts.append(decode(encode(columns, steps, plain), steps, plain))
    return torch.cat(parts, -1)
