"""From queries and keys to scores: s_tk = scaling · φ(q_t)·φ(k_k), with a feature map φ or without one.

Feature maps act after rotation, as in the paper's code (lit_gpt/model_attn_kernel.py): positions enter
through φ(R q).
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from sinkscope.attention.learned import Learned
from sinkscope.attention.pieces import piece
from sinkscope.attention.pieces.bases import Similarity as SimilarityPiece
from sinkscope.attention.pieces.opened import OpenTo
from sinkscope.attention.sizes import Sizes


@piece
class DotProduct:
    """φ(x) = x: s_tk = scaling · q_t·k_k. Source: Vaswani et al. 2017."""

    kind: Literal["dot_product"] = "dot_product"

    def build(self, sizes: Sizes) -> nn.Module:
        return nn.Identity()


@piece
class Kernel:
    """A feature map on queries and keys. Source: Gu et al. 2025, Tables 6 and 15; Katharopoulos et al. 2020.

    "elu": φ(x) = elu(x) + 1, positive. "mlp": φ(x) = W₂ relu(W₁ x), two learned (head_dim, head_dim) maps without bias,
    the same for queries and keys and for all heads of a layer, N(0, 2 / (5 · head_dim)) at the start. Acting after
    rotation it is not shift invariant: under left padding give `position_ids` that count real tokens.
    """

    feature: Literal["elu", "mlp"]
    kind: Literal["kernel"] = "kernel"

    def build(self, sizes: Sizes) -> nn.Module:
        return _EluPlusOne() if self.feature == "elu" else _FeatureMlp(sizes.head_dim)


Own = DotProduct | Kernel
Similarity = Annotated[Own | SimilarityPiece, OpenTo("similarity", Own, SimilarityPiece)]


def dot_product(
    query: Float[Tensor, "batch heads query dim"], key: Float[Tensor, "batch kv_heads key dim"], scaling: float
) -> Float[Tensor, "batch heads query key"]:
    """scaling · q·k; grouped queries meet the key head of their group without a copy of the keys."""
    batch, heads, queries, dim = query.shape
    kv_heads, keys = key.shape[1:3]
    grouped = query.reshape(batch, kv_heads, heads // kv_heads * queries, dim)
    return (scaling * grouped @ key.transpose(-1, -2)).view(batch, heads, queries, keys)


class _EluPlusOne(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.elu(x) + 1


class _FeatureMlp(Learned):
    maps = ("first", "second")

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.empty(width, width))
        self.second = nn.Parameter(torch.empty(width, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in (self.first, self.second):
            nn.init.normal_(weight, std=(2 / (5 * weight.shape[1])) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.relu(F.linear(x, self.first.to(x.dtype))), self.second.to(x.dtype))
