"""Any operation a few queries at a time, recomputed in the backward pass: O(T) memory, O(T²) arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

ROWS = 128  # queries of a chunk
SMALL = 256  # up to this many queries, everything is one chunk


def rows_of(queries: int) -> int:
    """How many queries a chunk has."""
    return max(queries, 1) if queries <= SMALL else ROWS


def attention(
    output_of: Callable[[slice], Float[Tensor, "batch heads rows value_dim"]], queries: int
) -> Float[Tensor, "batch heads query value_dim"]:
    """`output_of` over slices of queries, joined. Only queries, keys and values are kept for the backward pass."""
    step = rows_of(queries)
    parts = [slice(start, min(queries, start + step)) for start in range(0, queries, step)]
    if len(parts) == 1 or not torch.is_grad_enabled():  # nothing to save: recomputing would only cost time
        return torch.cat([output_of(part) for part in parts], 2)
    return torch.cat([_recomputed(output_of, part) for part in parts], 2)


def _recomputed(output_of: Callable[[slice], Tensor], rows: slice) -> Tensor:
    # A reentrant checkpoint would find no tensor among its arguments and give no gradient to what `output_of` closes
    # over. No random state is kept, because operations draw nothing: they have no dropout.
    return checkpoint(output_of, rows, use_reentrant=False, preserve_rng_state=False)
