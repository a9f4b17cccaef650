"""A learned vector added to the aggregated values."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.attention.outputs.gates import Spread
from sinkscope.attention.pieces import Learned, Sizes, piece
from sinkscope.attention.slots.keys import INITIAL_STD


@piece
class ValueBias:
    """y = A V + v*, with v* learned per query head; the weights A are untouched. Source: Gu et al. 2025, section 7.

    `initial_std`: of v* at the start.
    """

    initial_std: Spread = INITIAL_STD
    kind: Literal["value_bias"] = "value_bias"
    needs_hidden = False

    def build(self, sizes: Sizes) -> nn.Module:
        return _ValueBias(sizes, self.initial_std)


class _ValueBias(Learned):
    def __init__(self, sizes: Sizes, initial_std: float) -> None:
        super().__init__()
        self.initial_std = initial_std
        self.value = nn.Parameter(torch.empty(sizes.heads, sizes.head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.value, std=self.initial_std)

    def forward(
        self, output: Float[Tensor, "batch heads query dim"], hidden: Float[Tensor, "batch query width"] | None
    ) -> Float[Tensor, "batch heads query dim"]:
        return output + self.value[:, None, :].to(output.dtype)
