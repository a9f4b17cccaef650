"""From scores to weights. Slots come first among the columns; a normaliser treats them as further keys.

Each piece says what its rows sum to and which weights the sink metric reads: `raw`, or `renormalized` (|w| / Σ|w|) for
families whose rows do not sum to one (catalogue 12.3).
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from sinkscope.attention.pieces import STRICT

MetricWeights = Literal["raw", "renormalized"]


@dataclass(frozen=True, config=STRICT)
class Softmax:
    """w_j = exp(s_j) / Σ_visible exp(s_i); rows sum to one over tokens and slots. Source: Vaswani et al. 2017 [A26]."""

    kind: Literal["softmax"] = "softmax"

    @property
    def metric_weights(self) -> MetricWeights:
        return "raw"

    def weights(
        self, scores: Float[Tensor, "... query key"], visible: Bool[Tensor, "... query key"]
    ) -> Float[Tensor, "... query key"]:
        """Rows in which nothing is visible are zero, in values and gradients."""
        hidden = ~visible
        blank = hidden.all(-1, keepdim=True)
        shielded = scores.masked_fill(hidden & ~blank, -torch.inf).masked_fill(blank, 0.0)
        return torch.softmax(shielded, -1).masked_fill(hidden, 0.0)

    def log_partition(
        self, scores: Float[Tensor, "... query key"], visible: Bool[Tensor, "... query key"]
    ) -> Float[Tensor, "... query"]:
        """log Σ_visible exp(s_i), in nats; −inf where nothing is visible."""
        return torch.logsumexp(scores.masked_fill(~visible, -torch.inf), -1)


@dataclass(frozen=True, config=STRICT)
class Sigmoid:
    """w_j = σ(s_j), rows not normalised [A14]; `normalized`: w_j / (Σ w + 1e-8) [A15]. Source: Gu et al., Table 6."""

    normalized: bool = False
    kind: Literal["sigmoid"] = "sigmoid"

    @property
    def metric_weights(self) -> MetricWeights:
        return "renormalized"

    def weights(
        self, scores: Float[Tensor, "... query key"], visible: Bool[Tensor, "... query key"]
    ) -> Float[Tensor, "... query key"]:
        weights = torch.sigmoid(scores).masked_fill(~visible, 0.0)
        return weights / (weights.sum(-1, keepdim=True) + 1e-8) if self.normalized else weights


Normalizer = Annotated[Softmax | Sigmoid, Field(discriminator="kind")]
