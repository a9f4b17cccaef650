"""What happens to the aggregated values before they leave the attention operation."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from sinkscope.attention.learned import Learned
from sinkscope.attention.pieces import STRICT
from sinkscope.attention.sizes import Sizes
from sinkscope.attention.slots import INITIAL_STD


@dataclass(frozen=True, config=STRICT)
class ValueBias:
    """y = A V + v*, with v* learned per query head; the weights A are untouched [A9]. Source: Gu et al., section 7."""

    kind: Literal["value_bias"] = "value_bias"

    def build(self, sizes: Sizes) -> nn.Module:
        return _ValueBias(sizes)


Output = Annotated[ValueBias, Field()]


class _ValueBias(Learned):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.empty(sizes.heads, sizes.head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.value, std=INITIAL_STD)

    def forward(
        self, output: Float[Tensor, "batch heads query dim"], hidden: Float[Tensor, "batch query width"] | None
    ) -> Float[Tensor, "batch heads query dim"]:
        return output + self.value[:, None, :].to(output.dtype)
