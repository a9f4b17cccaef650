"""Merge evicted keys and values into kept ones."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from sinkscope.attention.scores import wide


def merged(
    key: Float[Tensor, "batch heads stored dim"],
    value: Float[Tensor, "batch heads stored value_dim"],
    index: Int[Tensor, "batch heads n"],
    kept: Bool[Tensor, "batch heads n"],
    real: Bool[Tensor, "batch heads stored"],
    how: str,
) -> tuple[Float[Tensor, "batch heads n dim"], Float[Tensor, "batch heads n value_dim"]]:
    """Keys and values of some slots, with all other real keys merged into them, in fp32, or fp64 if they are fp64.

    Each evicted key e, with its value, goes to the kept key c of highest cosine similarity. Source: Wan et al. 2024.

    Args:
        key, value: Keys and values of all slots.
        index: The slots to keep, per head.
        kept: False for slots of `index` that are to be empty.
        real: Which slots hold a key.
        how: "averaged": c ← mean of c and its evicted keys; "pivot": mean of c and all (e + c) / 2; "weighted": mean of
            c and all cos(e, c) · e.
    """
    # All real keys except the kept ones: also those of `index` whose slots are to be empty.
    goes = real.scatter(-1, index, real.gather(-1, index) & ~kept)
    # Sums of many keys overflow in fp16; added one by one in bf16, they stop growing: 256 + 1 is 256.
    key, value = wide(key), wide(value)
    unit = functional.normalize(key, dim=-1)
    kept_keys = _at(unit, index)
    # (batch, heads, stored, n). Below any cosine, but not −∞, which makes NaN in a head that keeps nothing.
    likeness = (unit @ kept_keys.mT).masked_fill(~kept[:, :, None], -2)
    cosine, to = likeness.max(-1)
    merged_rows = []
    for rows in (key, value):
        kept_rows = _at(rows, index)
        if how == "pivot":
            contributions = (rows + _at(kept_rows, to)) / 2
        else:
            contributions = rows if how == "averaged" else rows * cosine[..., None]
        # The kept row itself counts too: means are of 1 + n rows.
        counts = torch.ones_like(kept, dtype=rows.dtype).scatter_add_(-1, to, goes.to(rows.dtype))
        sums = kept_rows.clone().scatter_add_(2, _expanded(to, rows), contributions * goes[..., None])
        merged_rows.append(sums / counts[..., None])
    return merged_rows[0], merged_rows[1]


def _expanded(index: Tensor, rows: Tensor) -> Tensor:
    return index[..., None].expand(-1, -1, -1, rows.shape[-1])


def _at(rows: Tensor, index: Tensor) -> Tensor:
    return rows.gather(2, _expanded(index, rows))
