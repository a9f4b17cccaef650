"""The keys and values that a cache would hold, computed from a whole text at once."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinkscope.grids import (
    Grid,
    Numbers,
    Rotated,
    Steps,
    check_finite,
    decode,
    encode,
    rotation_of,
    steps_of,
    stored_steps,
    straight_through,
    to_fp16,
)


def rounded_states(
    x: Float[Tensor, "batch heads token dim"], grid: Numbers, left: Bool[Tensor, "batch token"]
) -> Float[Tensor, "batch heads token dim"]:
    """x as rounded by a cache that reads tokens one by one; tokens where `left` is True stay, and are part of no range.

    Real tokens come first in each row, then padding. Over a "channel" in groups, the tokens after the last whole group
    stay as well. Ranges that grow with the text are those of all tokens up to and including the token.
    """
    protected = left[:, None, :, None]
    if isinstance(grid, Rotated):
        turn = rotation_of(grid, x.shape[-1])
        # In fp32 until rotated back. Protected vectors are taken from x: rotating twice would change their bits.
        plain = rounded_states(x.detach().float() if turn is None else turn(x.detach().float()), grid.inner, left)
        plain = (plain if turn is None else turn(plain)).to(x.dtype)
        return straight_through(x, torch.where(protected, x.detach(), plain))
    if not isinstance(grid, Grid):
        check_finite(x, protected)
        return straight_through(x, torch.where(protected, x.detach(), grid.rounded(x.detach())))
    if grid.exact:
        return x
    wide = x.detach().float()
    if grid.over == "token" or grid.group is not None:
        # The range of a token or of a whole group is final once it closes, so a text can be rounded at once.
        whole = x.shape[2] if grid.over == "token" else x.shape[2] // grid.group * grid.group  # type: ignore[operator]
        if not whole:
            return x
        wide, protected = wide[:, :, :whole], protected[:, :, :whole]
        steps = stored_steps(wide, grid, protected)
    else:
        whole = x.shape[2]
        steps = to_fp16(_so_far(wide, grid, protected), grid)
    values = decode(encode(wide, steps, grid), steps, grid).to(x.dtype)
    values = torch.where(protected, x[:, :, :whole].detach(), values)
    values = torch.cat([values, x[:, :, whole:].detach()], 2)
    return straight_through(x, values)


def _so_far(x: Tensor, grid: Grid, protected: Tensor) -> Steps:
    """The ranges of all tokens up to each, (batch, 1 or heads, token, 1 or dim)."""
    steps_of(x, grid, protected.expand(x.shape))  # raises for numbers that are not finite
    # Extremes over what shares a range within a token, then running ones over the tokens.
    axes = {"head": (-1,), "tensor": (1, -1), "channel": ()}[grid.over]
    if grid.symmetric:
        size = x.abs().masked_fill(protected, 0)
        return Steps((size.amax(axes, keepdim=True) if axes else size).cummax(2).values / grid.top)
    high, low = x.masked_fill(protected, -torch.inf), x.masked_fill(protected, torch.inf)
    if axes:
        high, low = high.amax(axes, keepdim=True), low.amin(axes, keepdim=True)
    high, low = high.cummax(2).values, low.cummin(2).values
    empty = low > high
    high, low = high.masked_fill(empty, 0), low.masked_fill(empty, 0)
    return Steps((high - low) / grid.top, low)


class RealFirst:
    """Columns with the real tokens of each row moved to the front, and back."""

    def __init__(self, real: Bool[Tensor, "_ column"] | None) -> None:
        self._order: Int[Tensor, "_ column"] | None = None
        if real is not None and not bool(real.all()):
            self._order = torch.argsort((~real).int(), dim=-1, stable=True)  # stable: tokens keep their order

    def to(self, x: Float[Tensor, "batch heads column dim"]) -> Float[Tensor, "batch heads token dim"]:
        return x if self._order is None else x.gather(2, self._wide(x, self._order))

    def mask(self, mask: Bool[Tensor, "batch column"]) -> Bool[Tensor, "batch token"]:
        return mask if self._order is None else mask.gather(1, self._order.expand(len(mask), -1))

    def back(self, x: Float[Tensor, "batch heads token dim"]) -> Float[Tensor, "batch heads column dim"]:
        # The argsort of a permutation is its inverse.
        return x if self._order is None else x.gather(2, self._wide(x, self._order.argsort(-1)))

    def _wide(self, x: Tensor, order: Tensor) -> Tensor:
        return order[:, None, :, None].expand(*x.shape[:2], -1, x.shape[3])
