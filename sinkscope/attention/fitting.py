"""Do tensors fit an operation? Said in one line where they do not."""

from __future__ import annotations

from torch import Tensor

from sinkscope.attention.combination import Combination
from sinkscope.attention.sizes import Sizes
from sinkscope.errors import InputError


def check_shapes(spec: Combination, sizes: Sizes, query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raises `InputError` for queries, keys and values of other sizes than those the operation was built for."""
    shapes = f"q {tuple(query.shape)}, k {tuple(key.shape)}, v {tuple(value.shape)}"
    if {query.ndim, key.ndim, value.ndim} != {4}:
        raise InputError(f"{shapes}: expected (batch, heads, tokens, width) each")
    wanted = (sizes.heads, sizes.head_dim, sizes.kv_heads, sizes.head_dim, sizes.kv_heads)
    given = (query.shape[1], query.shape[-1], key.shape[1], key.shape[-1], value.shape[1])
    if wanted != given or key.shape[2] != value.shape[2]:
        raise InputError(
            f"{shapes} do not fit an operation with {sizes.heads} heads, {sizes.kv_heads} key-value heads, head width "
            f"{sizes.head_dim}"
        )
    check_values(spec, sizes, value)


def check_values(spec: Combination, sizes: Sizes, value: Tensor) -> None:
    """Raises `InputError` for values of another width than heads have, where a piece works on them."""
    if value.shape[-1] != sizes.head_dim and (kind := spec.as_wide_as_heads) is not None:
        raise InputError(
            f"values of width {value.shape[-1]} for heads of width {sizes.head_dim}: '{kind}' is as wide as a head, so "
            "values must be too"
        )


def check_hidden(spec: Combination, sizes: Sizes, hidden: Tensor | None, tokens: int) -> None:
    """Raises `InputError` for a block's input of another shape, where it is read."""
    wanted = (tokens, sizes.hidden_size)
    if spec.needs_hidden and hidden is not None and hidden.shape[1:] != wanted:
        raise InputError(f"hidden {tuple(hidden.shape)}: this operation reads (batch, {wanted[0]}, {wanted[1]})")
