"""What pieces of a specification are: frozen, validated values, in unions that other packages may add to."""

from sinkscope.attention.pieces.validated import STRICT, piece, pieces

__all__ = ["STRICT", "piece", "pieces"]
