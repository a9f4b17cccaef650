"""A block of the lab model."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from sinkscope.model.attention import LabAttention
from sinkscope.model.config import LabConfig
from sinkscope.model.feedforward import FeedForward, NoFeedForward
from sinkscope.model.mamba import LabMamba
from sinkscope.model.norms import PLACEMENTS, norm
from sinkscope.model.reparam import reparametrize


class LabBlock(GradientCheckpointingLayer):
    """x ← N_sum(x + β · N_out(f(N_in(x)))) for f = the mixer (attention, or Mamba in a hybrid), then the feed-forward.

    `config.norm_placement` says which of the norms there are (`norms.PLACEMENTS`); the others are identities. What a
    block returns is the residual stream before any norm: in a post-norm model, N_sum of the feed-forward is the next
    block's `entry_norm`, and the last one the model's `norm`.
    """

    def __init__(self, config: LabConfig, layer_idx: int) -> None:
        super().__init__()
        self.attends, self.gain = config.attends[layer_idx], config.residual_gain
        if self.attends:
            self.self_attn = LabAttention(config, layer_idx)
        else:
            self.mamba = LabMamba(config, layer_idx)
        feeds = config.ffn != "none"
        self.mlp = FeedForward(config) if feeds else NoFeedForward()
        has = PLACEMENTS[config.norm_placement]
        self.entry_norm = norm(config, has.opens(layer_idx))
        self.input_layernorm = norm(config, has.enters)
        self.mixer_output_norm = norm(config, has.leaves)
        self.mixer_sum_norm = norm(config, has.sums)
        self.post_attention_layernorm = norm(config, has.enters and feeds)
        self.mlp_output_norm = norm(config, has.leaves and feeds)
        if config.weight_reparam == "sigma":
            reparametrize(self, config.num_hidden_layers)

    def forward(self, hidden_states: Float[Tensor, "batch position width"], **kwargs: Any) -> Tensor:
        hidden_states = self.entry_norm(hidden_states)
        mixed = self._mix(self.input_layernorm(hidden_states), **kwargs)
        hidden_states = self.mixer_sum_norm(self._add(hidden_states, self.mixer_output_norm(mixed)))
        transformed = self.mlp(self.post_attention_layernorm(hidden_states))
        return self._add(hidden_states, self.mlp_output_norm(transformed))

    def _mix(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:
        return self.self_attn(hidden_states, **kwargs)[0] if self.attends else self.mamba(hidden_states, **kwargs)

    def _add(self, stream: Tensor, branch: Tensor) -> Tensor:
        return torch.add(stream, branch, alpha=self.gain)
