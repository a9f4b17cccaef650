"""A block of the lab model."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from sinkscope.model.attention import LabAttention
from sinkscope.model.config import LabConfig
from sinkscope.model.feedforward import SwiGLU


class LabBlock(GradientCheckpointingLayer):
    """x + attention(norm(x)), then x + feed-forward(norm(x))."""

    def __init__(self, config: LabConfig, layer_idx: int) -> None:
        super().__init__()
        self.self_attn = LabAttention(config, layer_idx)
        self.mlp = SwiGLU(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, hidden_states: Float[Tensor, "batch position width"], **kwargs: Any) -> Tensor:
        hidden_states = hidden_states + self.self_attn(self.input_layernorm(hidden_states), **kwargs)[0]
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))
