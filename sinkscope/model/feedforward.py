"""The feed-forward of a block."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from sinkscope.model.config import LabConfig


class DownProjection(nn.Linear):
    """The last map of a feed-forward, a class of its own because it starts smaller.

    transformers hands only modules with parameters of their own to `_init_weights`, so its owner cannot do that.
    """


class SwiGLU(nn.Module):
    """W_down(silu(W_gate x) · W_up x). Source: Shazeer 2020."""

    def __init__(self, config: LabConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = DownProjection(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Float[Tensor, "batch position width"]) -> Float[Tensor, "batch position width"]:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
