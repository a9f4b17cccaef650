"""Many slots in a layer, whose keys and values come from latent vectors."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from sinkscope.attention.context import Context
from sinkscope.attention.pieces import Learned, Sizes, piece
from sinkscope.attention.slots.keys import INITIAL_STD
from sinkscope.attention.slots.terms import SlotTerms

EPSILON = 1e-6


@piece
class LatentSlots:
    """`count` slots with k*_i = W_K ĉ_i and v*_i = W_V ĉ_i, ĉ = g ⊙ c / rms(c), from latents c_i of `rank` channels.

    Every query of every row sees all of them, under any mask; keys are never rotated (so under left padding give
    `position_ids` that count real tokens). Learned: c (count, rank), g
    (rank), W_K and W_V (kv_heads · head_dim, rank). `rank`: None is four times the head width, as theirs (512 channels
    for heads of 128). Starts: g = 1, the rest N(0, 0.02²). Source: openPangu-2.0 (Huawei 2026), 128 in each layer of a
    model with multi-head latent attention. There W_K, W_V and g are those of the tokens, which a layer without latents
    does not have, and 64 further learned channels of k*_i, the same for all heads, meet the query's rotated channels.
    """

    count: Annotated[int, Field(ge=1)] = 128
    rank: Annotated[int, Field(ge=1)] | None = None
    kind: Literal["latent"] = "latent"
    has_value = True
    needs_hidden = False

    def build(self, sizes: Sizes) -> nn.Module:
        return _LatentSlots(self.count, self.rank or 4 * sizes.head_dim, sizes)


class _LatentSlots(Learned):
    def __init__(self, count: int, rank: int, sizes: Sizes) -> None:
        super().__init__()
        self.count, self.shape = count, (sizes.kv_heads, sizes.head_dim)
        self.latent = nn.Parameter(torch.empty(count, rank))
        self.gain = nn.Parameter(torch.empty(rank))
        self.key_map = nn.Parameter(torch.empty(sizes.kv_heads * sizes.head_dim, rank))
        self.value_map = nn.Parameter(torch.empty(sizes.kv_heads * sizes.head_dim, rank))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.gain)
        for weight in (self.latent, self.key_map, self.value_map):
            nn.init.normal_(weight, std=INITIAL_STD)

    def forward(self, context: Context) -> tuple[SlotTerms, ...]:
        normed = F.rms_norm(self.latent, self.gain.shape, self.gain, eps=EPSILON)
        keys, values = (self._rows(normed, weight) for weight in (self.key_map, self.value_map))
        return tuple(SlotTerms(key=key, value=value) for key, value in zip(keys, values, strict=True))

    def _rows(self, normed: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        # (count, kv_heads · head_dim) to `count` tensors (kv_heads, head_dim)
        return F.linear(normed, weight).unflatten(-1, self.shape).unbind(0)
