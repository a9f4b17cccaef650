"""Stick-breaking weights."""

from __future__ import annotations

from typing import Literal

import torch
from torch.nn import functional as F

from sinkscope.attention.normalizers.base import Differentiated, Fraction, Map, PerQuery, exponential
from sinkscope.attention.pieces import piece


@piece
class StickBreaking(Differentiated):
    """w_j = σ(s_j) · Π_{i > j visible} (1 − σ(s_i)): from the last visible key backwards, each takes its share of what
    is left. Rows sum to at most 1. Source: Tan et al. 2024 (2410.17980).

    They leave out the query's own key; here it is the first to take, as in every other operation. Slots come last.
    Computed as exp((s_j + log σ(−s_j)) + Σ_{i > j} log σ(−s_i)).
    """

    kind: Literal["stick_breaking"] = "stick_breaking"

    @property
    def couples_keys(self) -> bool:
        return False  # a slot gets what no token took, and takes nothing from them

    def split(self, scores: Map, count: PerQuery) -> Fraction:
        # log σ(−s), 0 at a hidden score: hidden keys take nothing. Above its threshold softplus is linear; the default,
        # 20, would leave out e^−20, which fp64 resolves.
        left = F.softplus(scores, threshold=40).neg()
        after = F.pad(left[..., 1:], (0, 1)).flip(-1).cumsum(-1).flip(-1)  # the own term would drown it where s is huge
        return Fraction(exponential(scores + left + after))

    def slope(self, scores: Map, count: PerQuery, split: Fraction, upstream: Map, delta: PerQuery) -> Map:
        """x_j − σ(s_j) · Σ_{i ≤ j} x_i with x = w · upstream: a key takes its share from those before it."""
        taken = upstream.mul_(split.numerator)
        return taken - torch.sigmoid(scores).mul_(taken.cumsum(-1))
