"""Norms with more than a gain, after which no channel need be large to rescale the others (2601.22966)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from sinkscope.attention import Learned

Hidden = Float[Tensor, "... width"]


class GatedNorm(Learned):
    """y ⊙ σ(W_up · silu(W_down y)) with y = RMSNorm(x), W_down (rank, width) and W_up (width, rank) without biases.

    W_up starts at zero, so that every gate starts at ½; W_down N(0, 2 / (5 · width)). Source: 2601.22966, section 3.4,
    rank 16, after every norm.
    """

    maps = ("down", "up")

    def __init__(self, width: int, rank: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))
        self.down = nn.Parameter(torch.empty(rank, width))
        self.up = nn.Parameter(torch.empty(width, rank))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.normal_(self.down, std=(2 / (5 * self.down.shape[1])) ** 0.5)
        nn.init.zeros_(self.up)

    def forward(self, x: Hidden) -> Hidden:
        y = F.rms_norm(x, x.shape[-1:], self.weight, self.eps)
        return y * torch.sigmoid(F.linear(F.silu(F.linear(y, self.down)), self.up))


class PreAffineNorm(Learned):
    """RMSNorm(λ ⊙ x), λ and the gain (width,) learned from 1: λ can do what a large channel of x does.

    Source: 2601.22966.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))
        self.scale = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.ones_(self.scale)

    def forward(self, x: Hidden) -> Hidden:
        return F.rms_norm(x * self.scale, x.shape[-1:], self.weight, self.eps)
