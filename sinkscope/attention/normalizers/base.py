"""What every normalizer is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

MetricWeights = Literal["raw", "renormalized"]
Map = Float[Tensor, "... query key"]  # scores or weights; slots, if any, are the first keys
Visible = Bool[Tensor, "... query key"]
PerQuery = Float[Tensor, "... query 1"]


def exponential(x: Tensor, times: float = 1.0) -> Tensor:
    """e^(times · x) as a power of two, which CPUs compute three to thirty times faster than torch.exp.

    Relative error in fp32 up to |times · x| · 1e-7: for x ≤ 0, nothing that an attention weight would show.
    """
    return torch.exp2(x * (times / math.log(2)))


class Normalizer:
    """Turns scores into weights: a frozen piece with a `kind`, from which other packages may derive.

    `metric_weights`: which weights the sink metric reads, `raw`, or `renormalized` (|w| / Σ|w|) for families whose rows
    do not sum to one. `needs_every_key`: for pieces of other packages, whether dropping or reordering keys in a cache
    changes its meaning; caches refuse such pieces, and True is the default.
    """

    kind: str
    metric_weights: ClassVar[MetricWeights] = "raw"
    needs_every_key: ClassVar[bool] = True

    @property
    def couples_keys(self) -> bool:
        """Whether a key's weight depends on the other keys, so that a slot without a value matters."""
        return True

    def weights(self, scores: Map, visible: Visible, count: PerQuery) -> Map:
        """Weights, zero where not visible and in rows that see nothing. `count`: tokens that each query sees."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Fraction:
    """Weights u / Z: the numerator u, the divisor Z of each row (None is 1), and what `slope` reuses."""

    # Kept apart, so that a path can divide rows of outputs instead of query × key weights.
    numerator: Map
    divisor: PerQuery | None = None
    inner: Tensor | None = None


class Differentiated(Normalizer):
    """A normalizer that knows its derivative, so that a backward pass needs no graph of it (`paths/streamed.py`).

    `hidden`: the score of an invisible key; it must get weight zero.
    """

    hidden: ClassVar[float] = -1e30  # finite, since a row of nothing but −inf would be NaN

    def split(self, scores: Map, count: PerQuery) -> Fraction:
        """Weights of `scores`, as a fraction."""
        raise NotImplementedError

    def slope(self, scores: Map, count: PerQuery, split: Fraction, upstream: Map, delta: PerQuery) -> Map:
        """∂L/∂s. Its values at invisible keys are ignored.

        Args:
            scores: s, `hidden` where a key is not visible.
            count: Tokens that each query sees.
            split: What `split` returned for them: w = u / Z.
            upstream: (∂L/∂w) / Z; may be overwritten.
            delta: Σ w · upstream, which is −∂L/∂Z.
        """
        raise NotImplementedError

    def weights(self, scores: Map, visible: Visible, count: PerQuery) -> Map:
        split = self.split(scores.masked_fill(~visible, self.hidden), count)
        weights = split.numerator if split.divisor is None else split.numerator / split.divisor
        return weights.masked_fill(~visible, 0.0)
