"""Weights as the difference of two attention maps."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from sinkscope.attention.pieces import Learned, Sizes, piece
from sinkscope.errors import InputError

EPSILON = 1e-5  # added to the mean square, as in the authors' RMSNorm
Halves = tuple[Float[Tensor, "batch heads token half"], Float[Tensor, "batch heads token half"]]


@piece
class Difference:
    """A = softmax(q₁·k₁) − λ softmax(q₂·k₂), y = (1 − λ₀) · RMSNorm(A V). Source: Ye et al. 2024 (2410.05258).

    λ = exp(λ_q1·λ_k1) − exp(λ_q2·λ_k2) + λ₀ per layer, with four learned vectors N(0, 0.1²). A head's channels are cut
    in two halves that keep rotary pairs (i, i + d/2) together, so both maps depend only on relative positions; scores
    are scaled by (d/2)^−1/2 by default. `lambda_init`: λ₀, by default 0.8 − 0.6 · exp(−0.3 · layer) with layers counted
    from 0. Weights may be negative; rows sum to 1 − λ.
    """

    lambda_init: Annotated[float, Field(ge=0, lt=1)] | None = None
    kind: Literal["difference"] = "difference"

    def build(self, sizes: Sizes) -> DifferenceModule:
        if sizes.head_dim % 4:
            raise InputError(
                f"differential attention halves rotary pairs: head_dim = {sizes.head_dim} is not a multiple of 4"
            )
        start = 0.8 - 0.6 * math.exp(-0.3 * sizes.layer) if self.lambda_init is None else self.lambda_init
        return DifferenceModule(sizes.head_dim, start)


class DifferenceModule(Learned):
    """The factor λ, and the norm of what comes out."""

    def __init__(self, head_dim: int, start: float) -> None:
        super().__init__()
        self.start = start
        self.vectors = nn.Parameter(torch.empty(4, head_dim // 2))
        self.gain = nn.Parameter(torch.empty(head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.vectors, std=0.1)
        nn.init.ones_(self.gain)

    def factor(self) -> Tensor:
        """λ, a scalar in fp32 at least."""
        vectors = self.vectors.to(torch.promote_types(self.vectors.dtype, torch.float32))
        return (vectors[0] @ vectors[1]).exp() - (vectors[2] @ vectors[3]).exp() + self.start

    def scale(self, output: Float[Tensor, "batch heads query dim"]) -> Float[Tensor, "batch heads query dim"]:
        """The factor of every channel, (1 − λ₀) · gain / rms(output), in fp32 at least."""
        wide = output.to(torch.promote_types(output.dtype, torch.float32))
        inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON)
        return (1 - self.start) * self.gain.to(wide.dtype) * inverse

    def forward(self, output: Float[Tensor, "batch heads query dim"]) -> Float[Tensor, "batch heads query dim"]:
        return (output * self.scale(output)).to(output.dtype)


def halves(x: Float[Tensor, "batch heads token dim"]) -> Halves:
    """The two halves of a head's channels; a rotary pair (i, i + d/2) stays in one of them."""
    # Channel i of quarter 0 rotates with i + d/2, which is in quarter 2; quarters 1 and 3 likewise.
    quarters = x.chunk(4, -1)
    return torch.cat(quarters[0::2], -1), torch.cat(quarters[1::2], -1)
