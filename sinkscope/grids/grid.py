"""Integer grids: evenly spaced values over the range of a token, channel, head or tensor, with protected entries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from sinkscope.errors import InputError

Over = Literal["token", "channel", "head", "tensor"]

EXACT = 16  # a grid of this many bits leaves numbers unchanged
SCALE_BITS = 16  # bits of a stored scale, and of the stored lower end of a range
LARGEST = torch.finfo(torch.float16).max
NOT_FINITE = "cannot quantize NaN or infinite numbers: check the model's activations"
SMALLEST = 1e-5  # the least width of a range with an integer zero


@dataclass(frozen=True)
class Grid:
    """2^bits evenly spaced values between the ends of a range, and the entries that share the range.

    For x (..., token, channel), `over` names what shares a range: the channels of one "token" (for a weight: the
    inputs of one output), the tokens of one "channel", one "head" (the last two axes), or the whole "tensor". `group`
    splits the shared axis (channels for "token", tokens for "channel") into ranges of that many entries.

    Asymmetric: step = (max − min) / (2^bits − 1), starting at the minimum; 0 need not be on the grid. Symmetric:
    step = max |x| / (2^(bits−1) − 1), from −max |x| to max |x|, so 0 is on the grid and one code is unused. 16 bits
    leave the numbers unchanged. Raises `InputError` for bits outside 1…16, for a symmetric grid of 1 bit, which could
    only hold 0, and for groups of a range that has no axis to split.

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
            raise InputError("a symmetric grid of 1 bit can only hold 0: use bits=2, or symmetric=False")
        if self.group is not None and (not isinstance(self.group, int) or self.group < 1):
            raise InputError(f"groups of {self.group!r} entries: expected a positive whole number")
        if self.group is not None and self.over not in ("token", "channel"):
            raise InputError(f"a grid over '{self.over}' has no groups: use over='token' or 'channel'")

    @property
    def exact(self) -> bool:
        """Whether the grid leaves numbers unchanged."""
        return self.bits == EXACT

    @property
    def top(self) -> int:
        """The highest code; the lowest is 0, or −top where the grid is symmetric."""
        return 2 ** (self.bits - 1) - 1 if self.symmetric else 2**self.bits - 1

    def cut(self, x: Tensor) -> Tensor:
        """x with groups as a separate axis, before the axis that they split."""
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
    """The step and lower end of each range; axes along which entries share a range have length 1, groups are split out.

    Symmetric grids have no lower end. A range of a single value has step 0, as has one that is too narrow to divide by
    its step: each of its codes decodes to the lower end, or to 0.
    """

    step: Float[Tensor, "..."]
    low: Float[Tensor, "..."] | None = None


def steps_of(x: Float[Tensor, "..."], grid: Grid, protected: Bool[Tensor, "..."] | None = None) -> Steps:
    """The ranges of x without its protected entries (`protected` is True; broadcast to x).

    A range whose entries are all protected has step 0. Raises `InputError` for entries that are not finite, and for
    groups that do not divide their axis.
    """
    cut = grid.cut(x)
    axes, low, high = grid.shared(cut), cut, cut
    excluded = protected
    if -1 in axes and (protected is None or protected.shape[-1] == 1):  # whole rows: reduced before they are left out
        low, high = cut.amin(-1, keepdim=True), cut.amax(-1, keepdim=True)
        excluded = None if protected is None else grid.cut(protected.expand(x.shape))[..., :1]
    elif protected is not None:
        excluded = grid.cut(protected.expand(x.shape))
    if excluded is not None:
        # This also drops a NaN that is protected; any other NaN survives amin and amax, and is refused below.
        low, high = low.masked_fill(excluded, torch.inf), high.masked_fill(excluded, -torch.inf)
    low, high = low.amin(axes, keepdim=True), high.amax(axes, keepdim=True)
    empty = low > high  # a range whose entries are all protected
    low, high = low.masked_fill(empty, 0), high.masked_fill(empty, 0)
    if not bool((low.isfinite() & high.isfinite()).all()):  # either end is NaN where an entry is
        raise InputError(NOT_FINITE)
    if grid.symmetric:
        # The maximum is never negative: abs only clears the sign of −0.0.
        return Steps(_invertible(torch.maximum(high, -low).abs() / grid.top))
    return Steps(_invertible((high - low) / grid.top), low)


def _invertible(step: Tensor) -> Tensor:
    """Steps, with 0 for those so small (3e-39) that `encode` would multiply by infinity."""
    return step.masked_fill((1 / step.float()).isinf(), 0)


def check_finite(x: Float[Tensor, "..."], protected: Bool[Tensor, "..."] | None = None) -> None:
    """Raises `InputError` for entries that are not finite, except protected ones (broadcast to x)."""
    if not (x.isfinite() if protected is None else x.isfinite() | protected).all():
        raise InputError(NOT_FINITE)


def encode(x: Float[Tensor, "..."], steps: Steps, grid: Grid) -> Integer[Tensor, "..."]:
    """The nearest code of each entry, clamped to the ends of its range, in the shape of x.

    int32, from −top to top for symmetric grids and from 0 to top for others; halves round to the even code, as in
    torch's quantizers.
    """
    cut = grid.cut(x)
    offset = cut if steps.low is None else cut - steps.low
    # A product with 1 / step instead of a quotient: so symmetric grids equal torch's fake_quantize bit for bit.
    inverse = torch.where(steps.step > 0, 1 / steps.step, 0)
    lowest = -grid.top if grid.symmetric else 0
    return (offset * inverse).round().clamp(lowest, grid.top).to(torch.int32).reshape(x.shape)


def decode(codes: Integer[Tensor, "..."], steps: Steps, grid: Grid) -> Float[Tensor, "..."]:
    """The values of codes: low + code · step."""
    cut = grid.cut(codes).to(steps.step.dtype)
    values = cut * steps.step
    return (values if steps.low is None else values + steps.low).reshape(codes.shape)


def fake_quantize(
    x: Float[Tensor, "..."], grid: Grid, protected: Bool[Tensor, "..."] | None = None, steps: Steps | None = None
) -> Float[Tensor, "..."]:
    """x quantized and dequantized, in its own shape and dtype.

    Entries where `protected` (broadcast to x) is True are part of no range and stay unchanged. `steps`: frozen ranges
    (static quantization) instead of those of x. The gradient passes through unchanged (straight-through estimator).
    Raises `InputError` as `steps_of` does.
    """
    if grid.exact:
        return x
    # In fp32, because the 8 significant bits of bf16 are no finer than a grid of 8 bits.
    numbers = x.detach().float()
    steps = steps_of(numbers, grid, protected) if steps is None else steps
    rounded = _on_grid(numbers, steps, grid).to(x.dtype)
    if protected is not None and protected.shape[-1] == 1 < x.shape[-1]:
        rows = protected[..., 0].expand(x.shape[:-1])
        rounded[rows] = x.detach()[rows]  # few of many: a `where` over all entries takes longer than rounding them
    elif protected is not None:
        rounded = torch.where(protected, x.detach(), rounded)
    return straight_through(x, rounded)


def _on_grid(x: Float[Tensor, "..."], steps: Steps, grid: Grid) -> Float[Tensor, "..."]:
    """`decode(encode(x))` without codes of another type in between, which takes a third of the time."""
    cut = grid.cut(x)
    offset = cut if steps.low is None else cut - steps.low
    inverse = torch.where(steps.step > 0, 1 / steps.step, 0)
    # The product is a new tensor, so the in-place steps after it never write to x.
    values = (offset * inverse).round_().clamp_(-grid.top if grid.symmetric else 0, grid.top).mul_(steps.step)
    return (values if steps.low is None else values.add_(steps.low)).reshape(x.shape)


def straight_through(x: Float[Tensor, "..."], rounded: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """`rounded`, bit for bit, with the gradient of x (straight-through estimator)."""
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
    """Bits per number of a tensor of `shape`, including its share of the 16-bit scales and lower ends."""
    if grid.exact:
        return float(EXACT)
    cut = grid.cut(torch.empty(shape, device="meta"))
    entries = prod(cut.shape[axis] for axis in grid.shared(cut))
    return grid.bits + SCALE_BITS * (1 if grid.symmetric else 2) / entries


def stored_steps(x: Float[Tensor, "..."], grid: Grid, protected: Bool[Tensor, "..."] | None = None) -> Steps:
    """The ranges of x as fp16 numbers that cover all of it: lower ends are rounded down, steps up.

    So no entry moves by more than half a stored step. Raises `InputError` as `steps_of` does, and for ends beyond
    65,504, the largest fp16 number.
    """
    return to_fp16(steps_of(x, grid, protected), grid)


def to_fp16(steps: Steps, grid: Grid) -> Steps:
    """Ranges with fp16 ends that cover the given ones."""
    if steps.low is None:
        return Steps(_up(steps.step))
    low = _down(steps.low)
    # The lower end moved down, so the step grows until low + top · step reaches the old upper end again.
    return replace(steps, step=_up((steps.low - low + steps.step * grid.top) / grid.top), low=low)


def rounded_rows(x: Float[Tensor, "*rows dim"], bits: int) -> Float[Tensor, "*rows dim"]:
    """x on a grid of 2^bits steps over each row with an integer zero point, so that 0 stays 0 if the row spans it.

    For a row that does not span 0 the zero point is clamped, as in the code of Zhang et al. 2024: it is cut
    to its width, max x − min x, and a row of one constant to 1e-5.
    """
    high, low, top = x.amax(-1, keepdim=True), x.amin(-1, keepdim=True), 2**bits - 1
    step = (high - low).clamp(min=SMALLEST) / top
    zero = (-(low / step).round()).clamp(0, top)
    return (((x / step).round() + zero).clamp(0, top) - zero) * step


# Rounding to fp16 moves a number by at most 2^-11 of its size (2^-25 for subnormal numbers): moved outward by 2^-10 and
# 2^-25 before it is rounded, it never ends up inside of where it was.
def _up(x: Tensor) -> Tensor:
    return _fp16(torch.where(x > 0, x * (1 + 2**-10) + 2**-25, 0.0))


def _down(x: Tensor) -> Tensor:
    return _fp16(x - x.abs() * 2**-10 - 2**-25)


def _fp16(x: Tensor) -> Tensor:
    """Rounded to fp16, as fp32."""
    if bool((x.abs() > LARGEST).any()):
        raise InputError(f"keys or values up to {float(x.abs().max()):.3g}: 16-bit scales end at {LARGEST:,.0f}")
    return x.to(torch.float16).float()


def _divisors(size: int) -> str:
    divisors = [n for n in range(2, size + 1) if size % n == 0]
    return f"use one of {', '.join(map(str, divisors[:12]))}" if divisors else "the axis cannot be split"
