"""A block of the lab model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from sinkscope.model.attention import LabAttention
from sinkscope.model.config import LabConfig
from sinkscope.model.feedforward import FeedForward, NoFeedForward
from sinkscope.model.mamba import LabMamba
from sinkscope.model.reparam import reparametrize

NORMS: dict[str, type[nn.RMSNorm] | type[nn.LayerNorm]] = {"rmsnorm": nn.RMSNorm, "layernorm": nn.LayerNorm}


@dataclass(frozen=True)
class Placement:
    """Which of the norms N of a residual branch f there are: x ← N_sum(x + β · N_out(f(N_in(x)))).

    `enters`: N_in; `leaves`: N_out; `sums`: N_sum; a norm that is not there is the identity. `first`: a norm of the
    embeddings, before the first block; `last`: one behind the last block, before the head.
    """

    enters: bool = False
    leaves: bool = False
    sums: bool = False
    first: bool = False
    last: bool = False

    def opens(self, layer: int) -> bool:
        """Whether a block starts with a norm of the stream.

        The N_sum behind a block's feed-forward stands at the start of the next block, and the last one where other
        models have their final norm. So what blocks pass on is always the stream before a norm, where massive
        activations are to be seen (Gu et al. 2025, section 7).
        """
        return self.first if layer == 0 else self.sums

    @property
    def closes(self) -> bool:
        """Whether a norm of the stream stands behind the last block."""
        return self.last or self.sums


PLACEMENTS = {
    # x + f(N(x)), as in Llama.
    "pre": Placement(enters=True, last=True),
    # N(x + f(x)) and no other (Gu et al. 2025, section 7; sail-sg/Attention-Sink, lit_gpt/model_postln.py).
    "post": Placement(sums=True),
    # x + N(f(N(x))): Ding et al. 2021 (CogView); Gemma Team 2024.
    "sandwich": Placement(enters=True, leaves=True, last=True),
    # x + β f(x) (He et al. 2024). Ours norms the embeddings, stream and all; the released code norms only what
    # enters the first attention and keeps GPT-2's last norm. The paper's block also has `attention="qk_norm"` and
    # `ffn="relu"`, which stay choices of their own here.
    "outlier_protected": Placement(first=True),
}


def norm(config: LabConfig, wanted: bool = True) -> nn.Module:
    """The model's kind of norm over the width (`config.norm`, eps `config.rms_norm_eps`); the identity for the kind
    `none` and if not `wanted`.

    RMSNorm: x / sqrt(mean(x²) + eps) · g. LayerNorm: (x − mean(x)) / sqrt(var(x) + eps) · g + b. g starts at 1, b at 0.
    """
    if not wanted or config.norm == "none":
        return nn.Identity()
    return NORMS[config.norm](config.hidden_size, eps=config.rms_norm_eps)


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
