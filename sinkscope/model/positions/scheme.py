"""What a position scheme is: up to three ways in which a token's position enters the model."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor, nn

from sinkscope.model.positions.bias import DistanceBias
from sinkscope.model.positions.tokens import TokenPositions

Rotation = tuple[Tensor, Tensor]  # cos and sin, each (batch, position, rotated channels / 2)


class Scheme(nn.Module):
    """A scheme fills one of three roles: it adds to embeddings, rotates queries and keys, or biases scores.

    This base fills none, which is the scheme `none` (NoPE): only the mask tells positions apart (Gu et al. 2025, Table
    3).
    """

    def embed(
        self, hidden: Float[Tensor, "batch position width"], positions: Int[Tensor, "#batch position"]
    ) -> Float[Tensor, "batch position width"]:
        """The embeddings of real tokens with their positions added; sink tokens have none and stay as they are."""
        return hidden

    def rotation(self, positions: TokenPositions) -> Rotation | None:
        """How queries and new keys turn, in fp32; None where they do not."""
        return None

    def bias(self, positions: TokenPositions) -> DistanceBias | None:
        """What is added to the scores, bound to the tokens at hand; None where nothing is.

        Raises `InputError` where the keys' positions are not known.
        """
        return None
