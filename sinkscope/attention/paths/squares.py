"""Masks that are made of causal squares: one document or several, a prefix, left padding. Kernels know squares."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from sinkscope.attention.visibility import Visibility

LEAST = 64  # tokens of a square on average; smaller ones cost less in blocks


@dataclass(frozen=True)
class Square:
    """Tokens `start` … `stop`, each of which sees those from `start` up to itself; those before `ahead` see each other.

    Nothing else is seen in these rows. Without a prefix, `ahead` is `start` + 1.
    """

    start: int
    stop: int
    ahead: int


def squares_of(visibility: Visibility) -> list[list[Square]] | None:
    """The squares that a mask consists of, sample by sample (one list where all are alike); None where it does not.

    Rows in no square see nothing. None too where many small squares would cost more than a written mask.
    """
    spans, query = visibility.spans, visibility.query
    if spans is None or query is not visibility.key or not visibility.mask.solid(query, query):
        return None
    rows = torch.stack(torch.broadcast_tensors(*spans), -1).unique_consecutive(dim=0)
    if len(rows) > 1 and len(rows) < max(len(spans[0]), len(spans[1])):
        rows = torch.stack(torch.broadcast_tensors(*spans), -1)
    found = [_squares(first, stop) for first, stop in (row.unbind(-1) for row in rows)]
    if any(squares is None for squares in found):
        return None
    known = [squares for squares in found if squares is not None]
    return known if sum(map(len, known)) * LEAST <= max(LEAST, len(known) * query.count) else None


def _squares(first: Int[Tensor, "query"], stop: Int[Tensor, "query"]) -> list[Square] | None:
    """From the columns `first` … `stop` that each query of a sample sees."""
    seeing = first < stop
    begin, lengths = torch.where(seeing, first, -1).unique_consecutive(return_counts=True)
    at = lengths.cumsum(0) - lengths
    ahead = stop[at].where(begin >= 0, 0)
    own = torch.arange(1, len(first) + 1, device=first.device)
    reached = torch.maximum(own, ahead.repeat_interleave(lengths))
    fits = (begin == at) & (ahead <= at + lengths) | (begin < 0)
    if not bool(fits.all()) or not bool(((stop == reached) | ~seeing).all()):
        return None
    rows = torch.stack([at, at + lengths, ahead], -1)[begin >= 0]
    return [Square(*numbers) for numbers in rows.tolist()]
