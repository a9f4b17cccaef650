"""Forgetting: scores that fall with what lies between key and query."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from sinkscope.attention.learned import Learned
from sinkscope.attention.outputs.gates import Openness, logit
from sinkscope.attention.pieces import STRICT
from sinkscope.attention.sizes import Sizes


@dataclass(frozen=True, config=STRICT)
class ForgettingGate:
    """s_tk ← s_tk + Σ_{k < l ≤ t} log f_l with f_l = σ(w_h·x_l + b_h), x the block's input. Source: Lin et al. 2025.

    (Forgetting Transformer, 2503.02130.) `openness`: f at the start, where x = 0; w_h starts N(0, 0.02²). Every token
    carries log f in the cache beside its key. For a key after the query (bidirectional masks) the sum runs from the
    query to the key, which is ours. Where documents are packed, sums stay inside a document, because keys outside are
    not visible.
    """

    openness: Openness = 0.5
    kind: Literal["forgetting_gate"] = "forgetting_gate"

    def build(self, sizes: Sizes) -> nn.Module:
        return _ForgettingGate(sizes, self.openness)


class _ForgettingGate(Learned):
    def __init__(self, sizes: Sizes, openness: float) -> None:
        super().__init__()
        self.kv_heads, self.openness = sizes.kv_heads, openness
        self.weight = nn.Parameter(torch.empty(sizes.heads, sizes.hidden_size))
        self.bias = nn.Parameter(torch.empty(sizes.heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)
        nn.init.constant_(self.bias, logit(self.openness))

    def forward(self, hidden: Float[Tensor, "batch key width"]) -> Float[Tensor, "batch kv_heads key group"]:
        """log f of every token, a channel for each query head of a group, in fp32 at least."""
        wide = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
        kept = F.logsigmoid(F.linear(wide, self.weight.to(wide.dtype), self.bias.to(wide.dtype)))
        return kept.unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)


def accumulated(carried: Float[Tensor, "batch kv_heads key group"]) -> Float[Tensor, "batch heads key"]:
    """c_k = Σ_{l ≤ k} log f_l per query head, in fp64: what counts is the small difference of two large sums."""
    return carried.double().cumsum(2).transpose(2, 3).flatten(1, 2)
