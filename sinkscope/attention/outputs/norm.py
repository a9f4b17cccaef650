"""A norm of each head's output."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.attention.pieces import Learned, Sizes, piece

EPSILON = 1e-6


@piece
class HeadNorm:
    """y_h ← γ_h ⊙ y_h / rms(y_h), before the output projection, γ (heads, head_dim) learned from 1.

    Causal averaging shrinks the variance of later outputs, as σ² / (t + 1) under uniform attention; this undoes it.
    Source: 2605.06611, by excerpts; gains not compared with code.
    """

    kind: Literal["head_norm"] = "head_norm"
    needs_hidden = False

    def build(self, sizes: Sizes) -> HeadNormModule:
        return HeadNormModule(sizes.heads, sizes.head_dim)


class HeadNormModule(Learned):
    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.empty(heads, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.gain)

    def forward(
        self, output: Float[Tensor, "batch heads query dim"], hidden: Tensor | None
    ) -> Float[Tensor, "batch heads query dim"]:
        return output * self.scale(output)

    def scale(self, output: Float[Tensor, "batch heads query dim"]) -> Float[Tensor, "batch heads query dim"]:
        """γ / rms(y): what each part of y is multiplied by."""
        wide = output.to(torch.promote_types(output.dtype, torch.float32))
        factor = (wide.square().mean(-1, keepdim=True) + EPSILON).rsqrt()
        return factor.to(output.dtype) * self.gain[:, None].to(output.dtype)
