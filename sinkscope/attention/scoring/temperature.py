"""Temperature by the number of keys that a query sees."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.attention.pieces import Learned, Sizes, piece


@piece
class LogLength:
    """s_tk ← c_h · log(n_t) · s_tk, with n_t the number of tokens that query t sees and c_h learned per head.

    Scalable softmax: attention does not fade as the context grows. Source: Nakanishi 2025 (2501.19399). Equal to a
    scaling of the query, so a key bias is scaled along and a sink logit is not. `initial`: c_h at the start.
    """

    initial: float = 1.0
    kind: Literal["log_length"] = "log_length"

    def build(self, sizes: Sizes) -> nn.Module:
        return _LogLength(sizes.heads, self.initial)


class _LogLength(Learned):
    def __init__(self, heads: int, initial: float) -> None:
        super().__init__()
        self.initial = initial
        self.scale = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.scale, self.initial)

    def forward(
        self, query: Float[Tensor, "batch heads query dim"], count: Float[Tensor, "#batch #heads query 1"]
    ) -> Float[Tensor, "batch heads query dim"]:
        length = count.to(torch.promote_types(query.dtype, count.dtype)).log()
        return query * (self.scale[:, None, None] * length).to(query.dtype)
