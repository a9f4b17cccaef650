"""Evicted keys and values merged into kept ones."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional


def merged(
    key: Float[Tensor, "batch heads stored dim"],
    value: Float[Tensor, "batch heads stored value_dim"],
    index: Int[Tensor, "batch heads n"],
    kept: Bool[Tensor, "batch heads n"],
    real: Bool[Tensor, "batch heads stored"],
    how: str,
) -> tuple[Float[Tensor, "batch heads n dim"], Float[Tensor, "batch heads n value_dim"]]:
    """Keys and values of the slots `index`, of which those not `kept` are empty, with all other real ones merged in.

    Each evicted key goes to the kept key c of highest cosine, with its value. "averaged": c ← mean of c and its evicted
    ones; "pivot": mean of c and all (e + c) / 2; "weighted": mean of c and all cos(e, c) · e. Source: Wan et al. 2024.
    """
    goes = real.scatter(-1, index, real.gather(-1, index) & ~kept)
    unit = functional.normalize(key.float(), dim=-1)
    chosen = _at(unit, index)
    likeness = (unit @ chosen.mT).masked_fill(~kept[:, :, None], -torch.inf)
    cosine, to = likeness.max(-1)
    found = []
    for rows in (key, value):
        own = _at(rows, index)
        if how == "pivot":
            brought = (rows + _at(own, to)) / 2
        else:
            brought = rows if how == "averaged" else rows * cosine[..., None].to(rows.dtype)
        counts = torch.ones_like(kept, dtype=rows.dtype).scatter_add_(-1, to, goes.to(rows.dtype))
        sums = own.clone().scatter_add_(2, _wide(to, rows), brought * goes[..., None])
        found.append(sums / counts[..., None])
    return found[0], found[1]


def _wide(index: Tensor, rows: Tensor) -> Tensor:
    return index[..., None].expand(-1, -1, -1, rows.shape[-1])


def _at(rows: Tensor, index: Tensor) -> Tensor:
    return rows.gather(2, _wide(index, rows))
