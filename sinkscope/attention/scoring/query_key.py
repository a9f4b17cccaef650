"""Norms of queries and keys before rotation, and the cosine between them."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from sinkscope.attention.pieces import Learned, Sizes, piece

EPSILON = 1e-6


@piece
class QueryKeyNorm:
    """q, k ← norm(q), norm(k) over the channels of a head, before rotation, with one learned gain per channel.

    Bounds the logits: |q·k| / √d ≤ √d · max|g_q| · max|g_k|. `norm`: "layernorm" subtracts the mean as in ViT-22B
    (Dehghani et al. 2023, 2302.05442), "rmsnorm" does not (He et al. 2024; Qwen3). No bias. Gains start at 1. Source:
    Wortsman et al. 2023a.
    """

    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    kind: Literal["query_key_norm"] = "query_key_norm"

    def build(self, sizes: Sizes) -> nn.Module:
        return _QueryKeyNorm(sizes.head_dim, self.norm)


@piece
class CosineScores:
    """s_tk = c_h · cos(q_t, k_k), c learned per query head: q ← c_h √d · q / ‖q‖ and k ← k / ‖k‖ before rotation.

    Rotation keeps lengths, and the usual scaling 1 / √d cancels the √d. Bounds the logits by |c_h|. `initial`: c at the
    start, where x-transformers has 10. Source: Henry et al. 2020 (2010.04245), who have one c for a layer.
    """

    initial: Annotated[float, Field(gt=0)] = 10.0
    kind: Literal["cosine"] = "cosine"

    def build(self, sizes: Sizes) -> nn.Module:
        return _Cosine(sizes.heads, self.initial)


class _Cosine(Learned):
    def __init__(self, heads: int, initial: float) -> None:
        super().__init__()
        self.initial = initial
        self.scale = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.scale, self.initial)

    def forward(
        self, query: Float[Tensor, "batch heads query dim"], key: Float[Tensor, "batch kv_heads key dim"]
    ) -> tuple[Float[Tensor, "batch heads query dim"], Float[Tensor, "batch kv_heads key dim"]]:
        scale = self.scale[:, None, None].to(query.dtype) * query.shape[-1] ** 0.5
        return scale * F.normalize(query, dim=-1, eps=EPSILON), F.normalize(key, dim=-1, eps=EPSILON)


class _QueryKeyNorm(Learned):
    def __init__(self, width: int, norm: str) -> None:
        super().__init__()
        self.norm = norm
        self.query_gain = nn.Parameter(torch.empty(width))
        self.key_gain = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.query_gain)
        nn.init.ones_(self.key_gain)

    def forward(
        self, query: Float[Tensor, "batch heads query dim"], key: Float[Tensor, "batch kv_heads key dim"]
    ) -> tuple[Float[Tensor, "batch heads query dim"], Float[Tensor, "batch kv_heads key dim"]]:
        return self._normalized(query, self.query_gain), self._normalized(key, self.key_gain)

    def _normalized(self, x: Tensor, gain: Tensor) -> Tensor:
        if self.norm == "layernorm":
            return F.layer_norm(x, x.shape[-1:], gain.to(x.dtype), eps=EPSILON)
        return F.rms_norm(x, x.shape[-1:], gain.to(x.dtype), eps=EPSILON)
