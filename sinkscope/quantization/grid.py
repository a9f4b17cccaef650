"""The numbers that a quantizer can write: steps over tokens, channels, heads or tensors, with entries protected."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from sinkscope.errors import InputError

Over = Literal["token", "channel", "head", "tensor"]

EXACT = 16  # bits from which on a grid leaves numbers as they are
SCALE_BITS = 16  # in which a scale, or the lower end of a range, is stored


@dataclass(frozen=True)
class Grid:
    """2^bits evenly spaced values between the ends of a range, and which entries share a range.

    For x (..., token, channel), `over` says who shares: the channels of one "token" (for a weight: the inputs of one
    output), the tokens of one "channel", all of one "head" (the last two axes), or the whole "tensor". `group` cuts
    the shared axis ("token": along channels, "channel": along tokens) into ranges of so many entries.

    Asymmetric: step = (max − min) / (2^bits − 1), from the smallest value up; 0 need not be on the grid. Symmetric:
    step = max |x| / (2^(bits−1) − 1), from −max |x| to max |x|, so 0 is on it and one code stays unused. 16 bits are
    the numbers as they are. Raises `InputError` for bits outside 1…16, symmetric grids of 1 bit, which hold 0 alone,
    and groups where nothing is cut.

    Source: uniform affine quantization as in Jacob et al. (2018), with a real lower end instead of an integer zero
    point, as KIVI stores it (Liu et al. 2024).
    """

    bits: int
    over: Over = "token"
    group: int | None = None
    symmetric: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.bits, bool) or not isinstance(self.bits, int) or not 1 <= self.bits <= EXACT:
            raise InputError(f"a grid of {self.bits!r} bits: expected a whole number from 1 to {EXACT}")
        if self.over not in get_args(Over):
            raise InputError(f"a grid over {self.over!r}: expected one of {', '.join(get_args(Over))}")
        if self.symmetric and self.bits == 1:
            raise InputError("a symmetric grid of 1 bit holds 0 alone: take 2 bits, or symmetric=False")
        if self.group is not None and (not isinstance(self.group, int) or self.group < 1):
            raise InputError(f"groups of {self.group!r} entries: expected a whole number from 1 on")
        if self.group is not None and self.over not in ("token", "channel"):
            raise InputError(f"a grid over '{self.over}' has no groups: take over='token' or 'channel'")

    @property
    def exact(self) -> bool:
        """Whether it leaves numbers as they are."""
        return self.bits == EXACT

    @property
    def top(self) -> int:
        """The highest code; the lowest is 0, or −top where the grid is symmetric."""
        return 2 ** (self.bits - 1) - 1 if self.symmetric else 2**self.bits - 1

    def cut(self, x: Tensor) -> Tensor:
        """x with its groups as an axis of their own, before the axis that they cut."""
        if self.group is None:
            return x
        axis, name = (-1, "channels") if self.over == "token" else (-2, "tokens")
        if x.shape[axis] % self.group:
            raise InputError(f"groups of {self.group} do not divide {x.shape[axis]} {name}: {_divisors(x.shape[axis])}")
        return x.unflatten(axis, (-1, self.group))

    def shared(self, x: Tensor) -> tuple[int, ...]:
        """The axes of `cut(x)` whose entries share a range."""
        over_all = tuple(range(-x.ndim, 0))
        return {"token": (-1,), "channel": (-2,), "head": (-2, -1), "tensor": over_all}[self.over]


@dataclass(frozen=True, eq=False)
class Steps:
    """The lower end and the step of each range, with axes of length 1 where entries share it, groups cut out.

    Symmetric grids have no lower end. A range of one value has step 0: every code of it is read as that value.
    """

    step: Float[Tensor, "..."]
    low: Float[Tensor, "..."] | None = None


def steps_of(x: Float[Tensor, "..."], grid: Grid, protected: Bool[Tensor, "..."] | None = None) -> Steps:
    """The ranges of x, of which entries where `protected` (broadcast to x) is True are no part.

    A range of which everything is protected has step 0. Raises `InputError` for what is not finite, and for groups that
    do not divide their axis.
    """
    kept = None if protected is None else grid.cut(protected.expand(x.shape))
    if not (x.isfinite() if protected is None else x.isfinite() | protected).all():
        raise InputError("not a number, or infinite, where numbers are to be quantized: check the model's activations")
    x = grid.cut(x)
    axes = grid.shared(x)
    if grid.symmetric:
        size = x.abs() if kept is None else x.abs().masked_fill(kept, 0)
        return Steps(size.amax(axes, keepdim=True) / grid.top)
    low = (x if kept is None else x.masked_fill(kept, torch.inf)).amin(axes, keepdim=True)
    high = (x if kept is None else x.masked_fill(kept, -torch.inf)).amax(axes, keepdim=True)
    empty = low > high
    low, high = low.masked_fill(empty, 0), high.masked_fill(empty, 0)
    return Steps((high - low) / grid.top, low)


def encode(x: Float[Tensor, "..."], steps: Steps, grid: Grid) -> Integer[Tensor, "..."]:
    """The codes of x, in the shape of x: the nearest on the grid, the ends for what lies beyond them.

    int32, from −top to top for symmetric grids and from 0 to top for others; halves go to the even code, as torch's
    quantizers have it.
    """
    cut = grid.cut(x)
    offset = cut if steps.low is None else cut - steps.low
    inverse = torch.where(steps.step > 0, 1 / steps.step, 0)
    lowest = -grid.top if grid.symmetric else 0
    return (offset * inverse).round().clamp(lowest, grid.top).to(torch.int32).reshape(x.shape)


def decode(codes: Integer[Tensor, "..."], steps: Steps, grid: Grid) -> Float[Tensor, "..."]:
    """The values that codes stand for: low + code · step."""
    cut = grid.cut(codes).to(steps.step.dtype)
    values = cut * steps.step
    return (values if steps.low is None else values + steps.low).reshape(codes.shape)


def fake_quantize(
    x: Float[Tensor, "..."], grid: Grid, protected: Bool[Tensor, "..."] | None = None, steps: Steps | None = None
) -> Float[Tensor, "..."]:
    """x as a quantizer would give it back, in its own shape and dtype.

    Entries where `protected` (broadcast to x) is True count for no range and stay as they are. `steps`: frozen ranges
    (static quantization) instead of those of x. The gradient passes through unchanged (straight-through estimator).
    Raises `InputError` as `steps_of`.
    """
    if grid.exact:
        return x
    numbers = x.detach().float()
    steps = steps_of(numbers, grid, protected) if steps is None else steps
    rounded = decode(encode(numbers, steps, grid), steps, grid).to(x.dtype)
    rounded = rounded if protected is None else torch.where(protected, x.detach(), rounded)
    return straight_through(x, rounded)


def straight_through(x: Float[Tensor, "..."], rounded: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The rounded numbers, bit for bit, with the gradient of x (straight-through estimator)."""
    return _Straight.apply(x, rounded) if x.requires_grad else rounded


class _Straight(torch.autograd.Function):
    """y = rounded, dy/dx = 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rounded: Tensor) -> Tensor:
        return rounded.view_as(rounded)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def effective_bits(grid: Grid, shape: tuple[int, ...]) -> float:
    """Bits a number of a tensor of `shape` takes, its share of 16-bit scales (and lower ends) counted."""
    if grid.exact:
        return float(EXACT)
    cut = grid.cut(torch.empty(shape, device="meta"))
    entries = prod(cut.shape[axis] for axis in grid.shared(cut))
    return grid.bits + SCALE_BITS * (1 if grid.symmetric else 2) / entries


def _divisors(size: int) -> str:
    found = [n for n in range(2, size + 1) if size % n == 0]
    return f"take one of {', '.join(map(str, found[:12]))}" if found else "it has nothing to cut"
