"""Learned tokens before every sequence, as a target for attention.

Source: Gu et al. 2025, Table 4; Darcet et al. 2023.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.attention import Learned


class SinkTokens(Learned):
    """n learned embeddings in front of every sequence, drawn N(0, 0.02²); what the model makes of them is dropped.

    They have no position embedding, are at positions −n … −1 for rotations and biases (real tokens keep 0, 1, …),
    are seen by every query under every mask, and see only each other: in a causal model those before them, in a
    bidirectional one all of them, and the text as well unless documents would meet there. Source: Xiao et al. 2024
    (learnable sink token), paper table 4; locuslab/massive-activations, gpt-2/model_sink.py (registers). A measurement
    counts them as positions 0 … n−1.
    """

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.sink_tokens = nn.Parameter(torch.empty(count, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.sink_tokens, std=0.02)

    def forward(self, hidden: Float[Tensor, "batch position width"]) -> Float[Tensor, "batch longer width"]:
        """The sequence with the sink tokens in front."""
        tokens = self.sink_tokens.to(hidden.dtype).expand(len(hidden), -1, -1)
        return torch.cat([tokens, hidden], 1)
