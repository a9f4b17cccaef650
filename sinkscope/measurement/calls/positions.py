"""Where real tokens stand: with padding, position p of a row is its p-th real token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def locate(
    positions: Sequence[int], real: Bool[Tensor, "batch position"] | None, like: Tensor, start: int, length: int
) -> tuple[Int[Tensor, "batch n"], Bool[Tensor, "batch n"]]:
    """Column of each row's p-th real token for p in `positions`, and whether it is among the columns at hand.

    `real`: every token so far, None where all are real; `like`: a tensor with the rows and on the device; the columns
    at hand are the `length` absolute positions from `start`.
    """
    wanted = torch.tensor(positions, device=like.device).expand(len(like), -1)
    if real is None:
        absolute, exists = wanted, torch.ones_like(wanted, dtype=torch.bool)
    else:
        real = real.to(like.device)
        order = torch.argsort((~real).int(), dim=-1, stable=True)
        absolute = order.gather(1, wanted.clamp(max=order.shape[1] - 1))
        exists = wanted < real.sum(-1, keepdim=True)
    column = absolute - start
    return column.clamp(0, length - 1), exists & (column >= 0) & (column < length)
