"""An attention map cut into blocks that fit a cache: some queries, the keys that they can see, some heads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkscope.attention.visibility import Visibility

Hidden = tuple[slice, Bool[Tensor, "#batch _ rows _"]]


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Queries `rows` and the keys within their reach.

    `hidden`: in which columns, counted from `keys.start`, something is hidden, and what. `count`: tokens that each
    query sees, at least 1. `blank`: queries that see none, or None where each is known to see one.
    """

    rows: slice
    keys: slice
    hidden: tuple[Hidden, ...]
    count: Float[Tensor, "#batch _ rows 1"]
    blank: Bool[Tensor, "#batch _ rows 1"] | None


def rows_of(visibility: Visibility, step: int) -> Iterator[RowBlock]:
    """All queries, `step` at a time."""
    for start in range(0, visibility.query.count, step):
        yield _rows(visibility, slice(start, min(visibility.query.count, start + step)))


def _rows(visibility: Visibility, rows: slice) -> RowBlock:
    reach, bare = visibility.reach(rows), visibility.unmasked(rows)
    # An empty `bare` is at the end of the reach, so that the first edge is all of it.
    edges = [edge for edge in (slice(reach.start, bare.start), slice(bare.stop, reach.stop)) if edge.start < edge.stop]
    visible = [visibility.upto(edge).dense(rows) for edge in edges]
    # Every query sees the bare keys, so that only edges are counted.
    seen = torch.full((1, 1, rows.stop - rows.start, 1), bare.stop - bare.start, device=visibility.key.order.device)
    for part in visible:
        seen = seen + part.sum(-1, keepdim=True)
    hidden = tuple(
        (slice(edge.start - reach.start, edge.stop - reach.start), ~part)
        for edge, part in zip(edges, visible, strict=True)
    )
    return RowBlock(rows, reach, hidden, seen.clamp(min=1).float(), None if bare.start < bare.stop else seen == 0)
