"""TurboQuant as vLLM has it: levels placed for rotated unit vectors, and evenly spaced values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.errors import InputError
from sinkscope.grids.formats import RowFormat, Stored
from sinkscope.grids.packing import pack, unpack

ROUNDS = 200  # of Lloyd's iteration, at most
POINTS = 201  # of the trapezoidal rule in each interval
START = 3.5  # standard deviations: levels begin evenly spaced between ±START, and integrals end at three times that
CLOSE = 1e-10
TINY = 1e-8  # added to norms, and the least step


@cache
def lloyd_max(dim: int, bits: int) -> Float[Tensor, " level"]:
    """The 2^bits levels of least squared error for N(0, 1/dim), in increasing order, fp32.

    Lloyd's iteration: borders are the middles between levels, levels the means of the density between borders. The
    coordinates of a unit vector of `dim` numbers are distributed so after a random rotation, in the limit of large
    dim. Integrals, start and number of rounds are vLLM's, which stop short of the optimum by up to 2e-3 standard
    deviations. Source: vllm/model_executor/layers/quantization/turboquant/centroids.py; Max 1960, Lloyd 1982.
    """
    deviation, count = dim**-0.5, 2**bits
    end = START * deviation
    levels = end * (torch.arange(count, dtype=torch.float64) * 2 + 1 - count) / count
    steps = torch.linspace(0, 1, POINTS, dtype=torch.float64)
    for _ in range(ROUNDS):
        ends = torch.cat([levels.new_tensor([-3 * end]), (levels[1:] + levels[:-1]) / 2, levels.new_tensor([3 * end])])
        x = ends[:-1, None] + ends.diff()[:, None] * steps
        density = torch.exp(-x.square() / (2 * deviation**2))
        moved = torch.trapezoid(x * density, x) / torch.trapezoid(density, x)
        if float((moved - levels).abs().max()) < CLOSE:
            break
        levels = moved
    return levels.float()


@dataclass(frozen=True)
class LloydMax(RowFormat):
    """Keys: |x| in 16 bits, and the nearest of 2^bits levels for each coordinate of x / |x|: ⌈d · bits / 8⌉ + 2 bytes.

    To be rotated first (`Rotated`). `renormalize`: the levels of a vector are divided by their norm when they are read,
    so that only the direction is rounded (vLLM's `_nc`). The paper (Zandieh et al. 2025) adds the sign of a projected
    residual (QJL) and rotates by random matrices; vLLM does neither. Source: vllm/v1/attention/ops/
    triton_turboquant_store.py and triton_turboquant_decode.py. Not checked: that its kernels run as they read.
    """

    number_bits: int
    renormalize: bool = True

    def __post_init__(self) -> None:
        if self.number_bits not in (2, 3, 4):
            raise InputError(f"levels of {self.number_bits!r} bits: expected 2, 3 or 4")

    def encode(self, x: Float[Tensor, "*rows dim"]) -> Stored:
        wide = x.float()
        norms = wide.norm(dim=-1, keepdim=True)
        levels = lloyd_max(x.shape[-1], self.number_bits).to(x.device)
        # right=True: a number on a border belongs to the upper level, as in vLLM's kernel.
        codes = torch.bucketize((wide / (norms + TINY)).contiguous(), (levels[1:] + levels[:-1]) / 2, right=True)
        return pack(codes, self.number_bits), norms.half()

    def decode(self, stored: Stored, width: int) -> Float[Tensor, "*rows dim"]:
        levels = lloyd_max(width, self.number_bits).to(stored[0].device)
        directions = levels[unpack(stored[0], self.number_bits, width).long()]
        if self.renormalize:
            directions = directions / directions.norm(dim=-1, keepdim=True).clamp(min=TINY)
        return stored[1].float() * directions


@dataclass(frozen=True)
class MinMax(RowFormat):
    """Values: ⌊(x − min) / s + ½⌋ with s = (max − min) / (2^bits − 1), s and min in 16 bits: ⌈d · bits / 8⌉ + 4 bytes.

    Codes belong to the exact s and min, and are read with the rounded ones. Source: as `LloydMax`.
    """

    number_bits: int

    def __post_init__(self) -> None:
        if self.number_bits not in range(2, 9):
            raise InputError(f"values of {self.number_bits!r} bits: expected 2 to 8")

    def encode(self, x: Float[Tensor, "*rows dim"]) -> Stored:
        wide, top = x.float(), 2**self.number_bits - 1
        low = wide.amin(-1, keepdim=True)
        step = ((wide.amax(-1, keepdim=True) - low) / top).clamp(min=TINY)
        codes = ((wide - low) / step + 0.5).floor().clamp(0, top).to(torch.uint8)
        return pack(codes, self.number_bits), step.half(), low.half()

    def decode(self, stored: Stored, width: int) -> Float[Tensor, "*rows dim"]:
        codes, step, low = stored
        return unpack(codes, self.number_bits, width).float() * step.float() + low.float()
