"""Parts of a block: norm, rotary positions, feed-forward, attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Cache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from sinkscope.attention import Visibility
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
    x: Float[Tensor, "batch position heads dim"], rotation: Rotation
) -> Float[Tensor, "batch position heads dim"]:
    """Turn each pair of channels by its angle; dot products then depend on the difference of positions alone."""
    cos, sin = (part.unsqueeze(2) for part in rotation)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


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


def lab_attention_forward(
    module: LabAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Visibility,
    scaling: float | None = None,
    dropout: float = 0.0,
    hidden_states: Tensor | None = None,
    output_attentions: bool = False,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The lab model's attention function in transformers' contract: (batch, query, heads, dim) and weights or None."""
    attended = module.operation(
        query,
        key,
        value,
        visibility=attention_mask,
        hidden=hidden_states,
        scaling=scaling,
        path="reference" if output_attentions else "auto",
    )
    return attended.output.transpose(1, 2), attended.weights


class LabAttention(nn.Module):
    """Projections around an attention operation, which it finds where every transformers model does."""

    def __init__(self, config: LabConfig, layer_idx: int) -> None:
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.head_dim = config.head_dim
        self.scaling = self.head_dim**-0.5
        self.is_causal = True
        heads, kv_heads, width = config.num_attention_heads, config.kv_heads, config.hidden_size
        self.q_proj = nn.Linear(width, heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(heads * self.head_dim, width, bias=False)
        self.operation = config.spec.build(
            heads=heads, kv_heads=kv_heads, head_dim=self.head_dim, hidden_size=config.hidden_size
        )

    def forward(
        self,
        hidden_states: Float[Tensor, "batch position width"],
        visibility: Visibility,
        rotation: Rotation,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        split = (*hidden_states.shape[:-1], -1, self.head_dim)
        query = rotate(self.q_proj(hidden_states).view(split), rotation).transpose(1, 2)
        key = rotate(self.k_proj(hidden_states).view(split), rotation).transpose(1, 2)
        value = self.v_proj(hidden_states).view(split).transpose(1, 2)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
            seen = visibility.key.count  # a static cache hands out its whole buffer, filled or not
            key, value = key[:, :, :seen], value[:, :, :seen]
        attend: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, lab_attention_forward
        )
        output, weights = attend(
            self,
            query,
            key,
            value,
            visibility,
            scaling=self.scaling,
            dropout=0.0,
            hidden_states=hidden_states,
            **kwargs,
        )
        return self.o_proj(output.reshape(*hidden_states.shape[:-1], -1)), weights


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
