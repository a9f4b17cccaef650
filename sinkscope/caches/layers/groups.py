"""Heads that keep different numbers of keys, stored as two rectangles: one of short heads and one of long heads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from sinkscope.caches.layers.rectangle import EMPTY, SPARE, Slots

WORTH = 0.85  # split only if two rectangles need less than this share of the slots of one


@dataclass(eq=False)
class Group:
    """Some key-value heads and their slots. `gaps`: some slots may be empty."""

    heads: Int[Tensor, " n"]
    slots: Slots
    gaps: bool


def split(slots: Slots) -> list[Group] | None:
    """Split the slots into two rectangles if that saves enough; otherwise None. Empty slots must come first in each
    head.
    """
    held = slots["places"] >= 0
    counts = held.sum(-1).amax(0)
    order = counts.argsort(stable=True)
    widths = counts[order].tolist()
    # Slots per sample if the `cut` shortest heads form a rectangle: each is as wide as its longest head.
    sizes = [cut * widths[cut - 1] + (len(widths) - cut) * widths[-1] for cut in range(1, len(widths))]
    if not sizes or min(sizes) >= WORTH * len(widths) * slots.used:
        return None
    cut = 1 + sizes.index(min(sizes))
    groups = []
    for heads in (order[:cut].sort().values, order[cut:].sort().values):
        width = max(1, int(counts[heads].max()))
        # Empty slots come first, so the last `width` hold everything.
        rows = {name: rows[:, heads][:, :, slots.used - width : slots.used] for name, rows in slots.rows.items()}
        gaps = not bool(held[:, heads][:, :, slots.used - width :].all())
        groups.append(Group(heads, Slots.of(rows, SPARE), gaps))
    return groups


def join(groups: list[Group]) -> Slots:
    """One rectangle again, with empty slots first."""
    used, heads = max(group.slots.used for group in groups), sum(len(group.heads) for group in groups)
    rows = {}
    for name, like in groups[0].slots.rows.items():
        rows[name] = like.new_full((len(like), heads, used, *like.shape[3:]), EMPTY if name == "places" else 0)
        for group in groups:
            rows[name][:, group.heads, used - group.slots.used :] = group.slots[name]
    return Slots.of(rows, SPARE)


def grouped_attention(
    group: Group, query: Float[Tensor, "batch heads 1 dim"], least: Tensor | int, scaling: float
) -> Float[Tensor, "batch group_heads 1 value_dim"]:
    """Softmax attention of a group's query heads over its keys; slots with a place below `least` are masked."""
    key, value = group.slots["keys"], group.slots["values"]
    # (batch, kv_heads, group, dim): a group's heads are rows of one product, as one token needs no causal mask.
    packed = query.unflatten(1, (key.shape[1], -1))[:, :, :, 0]
    mask = (group.slots["places"] >= least)[:, :, None] if group.gaps else None
    output = functional.scaled_dot_product_attention(packed, key, value, attn_mask=mask, scale=scaling)
    return output.flatten(1, 2)[:, :, None]


def query_heads(group: Group, of_each: int) -> Int[Tensor, " n"]:
    """The query heads of a group's key-value heads, `of_each` per key-value head."""
    return (group.heads[:, None] * of_each + torch.arange(of_each, device=group.heads.device)).flatten()
