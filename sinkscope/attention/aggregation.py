"""Weights times values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.attention.scores import per_query_head
from sinkscope.attention.slots import SlotTerms


def aggregated(
    token: Float[Tensor, "batch heads query key"],
    slot: Float[Tensor, "batch heads query slots"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    terms: Sequence[SlotTerms],
) -> Float[Tensor, "batch heads query value_dim"]:
    """Σ_k w_tk v_k with grouped heads, and what the slots' values give."""
    batch, heads, queries, keys = token.shape
    kv_heads = value.shape[1]
    # The group's queries are stacked instead of repeating values for each query head, which would copy them.
    grouped = token.reshape(batch, kv_heads, heads // kv_heads * queries, keys)
    output = (grouped @ value).view(batch, heads, queries, value.shape[-1])
    valued = {index: each.value for index, each in enumerate(terms) if each.value is not None}
    if valued:
        values = torch.stack([per_query_head(each, output) for each in valued.values()], 1)
        output = output + slot[..., list(valued)] @ values
    return output
