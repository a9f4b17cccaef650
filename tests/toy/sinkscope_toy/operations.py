"""An attention operation: the piece that was missing, and a line of the catalog that uses it."""

from __future__ import annotations

from typing import ClassVar, Literal

import sinkscope as ss
from sinkscope.attention import AttentionSpec, NormalizerPiece


@ss.operation
class Powered(NormalizerPiece):
    """w_j = |s_j|^power / (Σ_visible |s_i|^power + 1e-8): rows sum to one, whatever the sign of a score."""

    power: float = 2.0
    kind: Literal["toy_powered"] = "toy_powered"
    needs_every_key: ClassVar[bool] = False  # a row is of the keys that it is given: caches may drop some

    def weights(self, scores, visible, count):
        powers = scores.abs().pow(self.power).masked_fill(~visible, 0.0)
        return powers / (powers.sum(-1, keepdim=True) + 1e-8)


@ss.operation(formula="A = |s|^p / Σ |s|^p", rows="tokens sum to 1", source="the template of docs/extending.md")
def toy_powered(power=2.0) -> AttentionSpec:
    return AttentionSpec(normalizer=Powered(power=power))
