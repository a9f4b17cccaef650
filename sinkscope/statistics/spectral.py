"""Directions of the residual stream by how strongly the unembedding reads them (Cancedda 2024)."""

from __future__ import annotations

from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from sinkscope.errors import InputError

BLOCKS = 8  # of columns per product
ROWS = 2048  # of the unembedding in float64 at once
_KNOWN: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # weight → (its state, V)


def spectral_bands(
    unembedding: Float[Tensor, "vocabulary width"], count: int = 20
) -> tuple[Float[Tensor, "width width"], list[slice]]:
    """W_U = U S Vᵀ: the columns of V, largest singular value first, and the `count` slices that cut them into bands.

    Bands differ by at most one direction in size; V is orthonormal, so Σ_b V_b V_bᵀ = 1 and the energies of the bands
    add up to ‖h‖² (Parseval). V comes from the eigenvectors of W_Uᵀ W_U (width × width) in float64, so the vocabulary
    costs one product, computed in blocks of rows; it is returned in fp32 on the CPU. Raises `InputError` for a count
    outside 1 … width.

    Source: Cancedda 2024, where the last of 20 bands is the "dark" one. A gain of the final norm is not folded into
    W_U, since the paper does not say that it is.
    """
    slices = band_slices(unembedding.shape[-1], count)
    return _directions(unembedding), slices


def band_slices(width: int, count: int) -> list[slice]:
    """The slices of `width` directions in `count` bands. Raises `InputError` for a count outside 1 … width."""
    if not 1 <= count <= width:
        raise InputError(f"{count} spectral bands of a residual stream of width {width}: choose 1 to {width}")
    borders = [band * width // count for band in range(count + 1)]
    return [slice(*pair) for pair in pairwise(borders)]


def _directions(unembedding: Tensor) -> Float[Tensor, "width width"]:
    """V, cached as long as the weight lives and is not written to: it takes a second for GPT-2."""
    # The version counts writes in place, and an exchanged `.data` has another address.
    state = (unembedding._version, unembedding.data_ptr())
    known = _KNOWN.get(unembedding)
    if known is None or known[0] != state:
        # WᵀW has the squares of W's singular values: in fp32 the smallest (the dark band) would be lost in rounding.
        ascending = torch.linalg.eigh(_products(unembedding.detach()), UPLO="L").eigenvectors
        known = (state, ascending.flip(-1).float())
        _KNOWN[unembedding] = known
    return known[1]


def _products(matrix: Float[Tensor, "vocabulary width"]) -> Float[Tensor, "width width"]:
    """The lower triangle of Wᵀ W, which suffices for its eigenvectors: little more than half the work."""
    width = matrix.shape[1]
    products = torch.zeros(width, width, dtype=torch.float64)
    for block in matrix.split(ROWS):
        wide = block.to("cpu", torch.float64)
        for start in range(0, width, max(1, width // BLOCKS)):
            rows = slice(start, start + max(1, width // BLOCKS))
            products[rows, : rows.stop] += wide[:, rows].mT @ wide[:, : rows.stop]
    return products
