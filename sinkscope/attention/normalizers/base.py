"""What every normaliser is."""

from __future__ import annotations

from typing import ClassVar, Literal

from jaxtyping import Bool, Float
from torch import Tensor

MetricWeights = Literal["raw", "renormalized"]


class Normalizer:
    """From scores to weights: a frozen piece with a `kind`.

    `metric_weights`: which weights the sink metric reads, `raw`, or `renormalized` (|w| / Σ|w|) for families whose
    rows do not sum to one (catalogue 12.3).
    """

    metric_weights: ClassVar[MetricWeights] = "raw"

    @property
    def couples_keys(self) -> bool:
        """Whether a key's weight depends on the other keys, so that a slot without a value matters."""
        return True

    def weights(
        self,
        scores: Float[Tensor, "... query key"],
        visible: Bool[Tensor, "... query key"],
        count: Float[Tensor, "... query 1"],
    ) -> Float[Tensor, "... query key"]:
        """Weights, zero where not visible and in rows that see nothing. `count`: tokens that each query sees."""
        raise NotImplementedError
