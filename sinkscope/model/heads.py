"""How the outputs of the heads become one vector (Gu et al. 2025, Table 12)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from sinkscope.model.config import LabConfig


class AddedHeads(nn.Module):
    """Σ_h A_h V_h W_O with one W_O (head_dim → width) for all heads (Gu et al. 2025, Table 12).

    Takes head after head in its last dimension, as a projection of concatenated heads does. Equal to that projection
    where its blocks W_O^h are all the same. Not in the released code; the paper writes the formula.
    """

    def __init__(self, heads: int, head_dim: int, width: int) -> None:
        super().__init__()
        self.heads, self.in_features, self.out_features = heads, heads * head_dim, width
        self.weight = nn.Parameter(torch.empty(width, head_dim))

    def forward(self, x: Float[Tensor, "batch position heads_dim"]) -> Float[Tensor, "batch position width"]:
        return F.linear(x.unflatten(-1, (self.heads, -1)).sum(-2), self.weight)


def output_map(config: LabConfig) -> nn.Module:
    """What stands behind the heads: W_O over all of them side by side, or one W_O over their sum."""
    heads, dim, width = config.num_attention_heads, config.head_dim, config.hidden_size
    if config.head_combination == "add":
        return AddedHeads(heads, dim, width)
    return nn.Linear(heads * dim, width, bias=False)
