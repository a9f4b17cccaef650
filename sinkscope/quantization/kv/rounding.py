"""What keys and values become in a cache, all tokens of a text at hand."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinkscope.grids import Grid, Steps, decode, encode, steps_of, stored_steps, to_fp16


def rounded(
    x: Float[Tensor, "batch heads token dim"], grid: Grid, left: Bool[Tensor, "batch token"]
) -> Float[Tensor, "batch heads token dim"]:
    """x as a cache that reads its tokens one by one has rounded it; tokens where `left` is True stay, and count for no
    range.

    Real tokens come first in each row, padding behind them. Over a "channel" in groups: the tokens behind the last
    whole group stay as well. Ranges that grow with the text are those of what came until the token, itself included.
    """
    if grid.exact:
        return x
    wide, protected = x.detach().float(), left[:, None, :, None]
    if grid.over == "token" or grid.group is not None:
        whole = x.shape[2] if grid.over == "token" else x.shape[2] // grid.group * grid.group  # type: ignore[operator]
        if not whole:
            return x
        wide, protected = wide[:, :, :whole], protected[:, :, :whole]
        steps = stored_steps(wide, grid, protected)
    else:
        whole = x.shape[2]
        steps = to_fp16(_so_far(wide, grid, protected), grid)
    found = decode(encode(wide, steps, grid), steps, grid).to(x.dtype)
    found = torch.where(protected, x[:, :, :whole].detach(), found)
    found = torch.cat([found, x[:, :, whole:].detach()], 2)
    return x + (found - x.detach()) if x.requires_grad else found


def _so_far(x: Tensor, grid: Grid, protected: Tensor) -> Steps:
    """The ranges of all tokens up to each, (batch, 1 or heads, token, 1 or dim)."""
    steps_of(x, grid, protected.expand(x.shape))  # refuses what is not finite
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


class Front:
    """Columns with each row's real tokens moved to the front, and back again."""

    def __init__(self, real: Bool[Tensor, "_ column"] | None) -> None:
        self._order: Int[Tensor, "_ column"] | None = None
        if real is not None and not bool(real.all()):
            self._order = torch.argsort((~real).int(), dim=-1, stable=True)

    def to(self, x: Float[Tensor, "batch heads column dim"]) -> Float[Tensor, "batch heads token dim"]:
        return x if self._order is None else x.gather(2, self._wide(x, self._order))

    def mask(self, mask: Bool[Tensor, "batch column"]) -> Bool[Tensor, "batch token"]:
        return mask if self._order is None else mask.gather(1, self._order.expand(len(mask), -1))

    def back(self, x: Float[Tensor, "batch heads token dim"]) -> Float[Tensor, "batch heads column dim"]:
        return x if self._order is None else x.gather(2, self._wide(x, self._order.argsort(-1)))

    def _wide(self, x: Tensor, order: Tensor) -> Tensor:
        return order[:, None, :, None].expand(*x.shape[:2], -1, x.shape[3])
