"""Rotary positions."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sinkscope.model.config import LabConfig

Rotation = tuple[Tensor, Tensor]  # cos and sin, each (batch, position, head_dim / 2)


class Rotary(nn.Module):
    """Rotary positions: pair (i, i + d/2) turns by p · theta^(−2i/d). Source: Su et al. 2021, in Llama's layout."""

    def __init__(self, config: LabConfig) -> None:
        super().__init__()
        self.head_dim, self.theta = config.head_dim, config.rope_theta

    def forward(self, position_ids: Int[Tensor, "batch position"], dtype: torch.dtype) -> Rotation:
        half = torch.arange(0, self.head_dim, 2, device=position_ids.device, dtype=torch.float32) / self.head_dim
        angle = position_ids[..., None].float() * self.theta**-half
        return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate(
    x: Float[Tensor, "batch heads position dim"], rotation: Rotation
) -> Float[Tensor, "batch heads position dim"]:
    """Turn each pair of channels by its angle; dot products then depend on the difference of positions alone."""
    cos, sin = (part.unsqueeze(1) for part in rotation)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
