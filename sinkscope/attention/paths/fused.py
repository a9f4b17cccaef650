"""Fused kernels for the element-wise family on CUDA, taken only where a GPU has confirmed them (`kernels/`)."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from sinkscope.attention.kernels import fused, plan_of
from sinkscope.attention.kernels import obstacle as obstacle
from sinkscope.attention.normalizers import Normalizer
from sinkscope.attention.visibility import Visibility


def attention(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    normalizer: Normalizer,
    visibility: Visibility,
    scaling: float,
) -> Float[Tensor, "batch heads query value_dim"]:
    """The operation where `obstacle` is None."""
    plan = plan_of(normalizer, visibility.mask)
    assert plan is not None
    return fused(query, key, value, plan.activation, plan.normalized, plan.mask, plan.window, scaling)
