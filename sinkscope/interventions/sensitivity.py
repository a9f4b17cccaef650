"""How far a change of one token spreads (Barbero et al. 2025)."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float
from torch import Tensor, nn

from sinkscope.errors import InputError
from sinkscope.hooks import (
    Edit,
    OpenStream,
    batches,
    checked_inputs,
    evaluating,
    read_stream,
    row_length,
    unwrapped,
    width_of,
    without_logits,
)


def perturbation_spread(
    model: nn.Module, inputs: Any, position: int, scale: float = 0.01, *, seed: int = 0, batch_size: int = 8
) -> xr.DataArray:
    """‖h̃_j^(l) − h_j^(l)‖ / ‖δ‖ (sample, depth, position j), with δ added to token `position` at depth 0.

    A finite difference of the sensitivity ‖∂h_j^(l) / ∂h_i^(0)‖, which sinks are said to keep small (Barbero et al.
    2025); it depends on the direction of δ, so only compare results of the same seed.

    Args:
        model: Any transformers model with a residual stream.
        inputs: As in `measure`.
        position: i, counting real tokens; rows without such a token are NaN.
        scale: ‖δ‖ over the length of that token's vector.
        seed: Decides the direction of δ.
        batch_size: Samples per pass.

    Raises `InputError` for a position that no row has, and for a scale that is not positive.
    """
    model = unwrapped(model)
    checked, samples = checked_inputs(model, inputs, batch_size)
    length = row_length(model, checked)
    if not 0 <= position < length:
        raise InputError(f"position {position} is in no row: rows have positions 0 to {length - 1}")
    if not scale > 0:
        raise InputError(f"scale = {scale}: must be positive")
    direction = torch.nn.functional.normalize(
        torch.randn(width_of(model), generator=torch.Generator().manual_seed(seed)), dim=0
    )
    parts = []
    with evaluating(model), torch.no_grad():
        for batch in batches(model, checked, samples, batch_size):
            before, _ = _depths(model, batch)
            with ExitStack() as stack:
                opened = OpenStream(model, stack)
                opened.edit(0, _pushed(opened, position, scale * direction))
                after, real = _depths(model, batch)
            moved = (after - before).norm(dim=-1)
            size = moved[0].amax(-1, keepdim=True)  # nothing else moves at depth 0
            parts.append(_in_front(moved / size, real).transpose(0, 1).numpy())
    spread = np.concatenate(parts)
    # Padding is NaN at every depth, so the longest text ends the axis.
    reached = int((~np.isnan(spread[:, 0])).sum(-1).max())
    return xr.DataArray(spread[..., :reached], dims=("sample", "depth", "position"), name="perturbation_spread")


def _in_front(
    values: Float[Tensor, "depth batch position"], real: Bool[Tensor, "_ position"]
) -> Float[Tensor, "depth batch position"]:
    """The values of real tokens in order, so that position p is the p-th of a row; NaN after them."""
    real = real.expand(values.shape[1:])
    # Stable: real tokens keep their order and come before the padding.
    order = torch.argsort((~real).int(), dim=-1, stable=True)
    front = values.gather(-1, order.expand(values.shape))
    return front.masked_fill(~real.gather(-1, order), torch.nan)


def _pushed(opened: OpenStream, position: int, step: Tensor) -> Edit:
    def edit(hidden: Tensor) -> Tensor:
        pushed = hidden + step.to(hidden) * hidden.norm(dim=-1, keepdim=True)
        return torch.where(opened.at((position,), hidden)[..., None], pushed, hidden)

    return edit


def _depths(model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The residual stream (depth, batch, position, width) in fp32, and which tokens are real."""
    streams: list[Tensor] = []
    reals: list[Tensor] = []

    def read(depth: int, hidden: Tensor, opened: OpenStream) -> None:
        streams.append(hidden.float().cpu())
        reals.append(opened.at(None, hidden).cpu())

    with read_stream(model, read):
        model(**batch | without_logits(model, batch))
    return torch.stack(streams), reals[0]
