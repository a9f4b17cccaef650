"""Grids, tile sizes and the autograd function around the kernels. Importing this needs triton."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from jaxtyping import Float
from torch import Tensor

from sinkscope.attention.kernels.passes import forward_kernel, key_kernel, query_kernel
from sinkscope.attention.kernels.plan import UNBOUNDED, KernelPlan
from sinkscope.errors import InputError

INTERPRETED = not isinstance(forward_kernel, triton.JITFunction)  # TRITON_INTERPRET=1 when the kernels were imported
NARROWEST = 16  # a tile product needs at least this in each direction


@dataclass(frozen=True)
class Tiling:
    """Queries and keys in a tile, and the compiler's warps and pipeline stages."""

    rows: int
    columns: int
    warps: int
    stages: int


def forward_tiling(dim: int, itemsize: int) -> Tiling:
    """Tile sizes that fit the shared memory of a data-centre GPU; heads of up to 128 channels."""
    if INTERPRETED:
        return Tiling(16, 32, 1, 1)  # unequal, and small enough that odd lengths end inside a tile
    if itemsize > 2:
        return Tiling(32, 32, 4, 1) if dim <= 64 else Tiling(16, 32, 4, 1)
    return Tiling(128, 64, 8, 3 if dim <= 64 else 2)


def backward_tiling(dim: int, itemsize: int) -> Tiling:
    """As `forward_tiling`; four tiles and two sums are alive at a time."""
    if INTERPRETED:
        return Tiling(16, 32, 1, 1)
    if itemsize > 2:
        return Tiling(32, 32, 4, 1) if dim <= 64 else Tiling(16, 32, 4, 1)
    return Tiling(64, 64, 8, 2) if dim <= 64 else Tiling(32, 64, 8, 1)


class ElementwiseAttention(torch.autograd.Function):
    """o = W v with W of `KernelPlan`, and its first derivatives; keeps q, k, v and two numbers a row: O(T) memory."""

    @staticmethod
    def forward(query: Tensor, key: Tensor, value: Tensor, plan: KernelPlan, scaling: float) -> tuple[Tensor, ...]:
        """Arguments as in `forward`."""
        return forward(query, key, value, plan, scaling)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> None:
        *tensors, ctx.plan, ctx.scaling = inputs
        ctx.mark_non_differentiable(*outputs[1:])
        ctx.save_for_backward(*tensors, *outputs[1:])

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        if torch.is_grad_enabled():
            raise InputError("the fused kernels have no second derivative: ask for path='reference'")
        query, key, value, *state = ctx.saved_tensors
        return *backward(upstream, query, key, value, state, ctx.plan, ctx.scaling), None, None


def forward(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    plan: KernelPlan,
    scaling: float,
) -> tuple[Tensor, ...]:
    """Launch the forward kernel.

    Returns the output (batch, heads, query, value_dim); where rows are divided also, for `backward`, each row's
    denominator and softpick's shift, fp32.

    Args:
        query, key, value: q, k and v, all of one dtype.
        plan: Weights and mask.
        scaling: Factor of q·k.
    """
    query, key, value = (_adjacent(tensor) for tensor in (query, key, value))
    output = _like_projected(query, value.shape[-1])
    state = [query.new_empty(query.shape[:3], dtype=torch.float32) for _ in range(2 if plan.divides else 0)]
    # Kernels need some pointer, which they do not touch where rows are not divided.
    denominator, shift = state or (output, output)
    tiling = forward_tiling(max(query.shape[-1], value.shape[-1]), query.element_size())
    batch, heads, queries = query.shape[:3]
    forward_kernel[(triton.cdiv(queries, tiling.rows), heads, batch)](
        query, key, value, output, denominator, shift,
        *(tensor.stride()[:3] for tensor in (query, key, value, output)),
        **settings(query, key, value, plan, scaling, tiling),
    )  # fmt: skip
    return output, *state


def backward(
    upstream: Float[Tensor, "batch heads query value_dim"],
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    state: Sequence[Tensor],
    plan: KernelPlan,
    scaling: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v.

    Args:
        upstream: Gradient of the output.
        state: What `forward` returned besides the output.
        query, key, value, plan, scaling: Those of `forward`.
    """
    upstream, query, key, value = (_adjacent(tensor) for tensor in (upstream, query, key, value))
    to_query, to_key, to_value = (_like_projected(tensor, tensor.shape[-1]) for tensor in (query, key, value))
    denominator, shift, delta = (*state, torch.empty_like(state[0])) if state else (query, query, query)
    tiling = backward_tiling(max(query.shape[-1], value.shape[-1]), query.element_size())
    sizes = settings(query, key, value, plan, scaling, tiling)
    batch, heads, queries = query.shape[:3]
    query_kernel[(triton.cdiv(queries, tiling.rows), heads, batch)](
        query, key, value, upstream, denominator, shift, delta, to_query,
        *(tensor.stride()[:3] for tensor in (query, key, value, upstream, to_query)),
        **sizes,
    )  # fmt: skip
    # After `query_kernel`, whose δ it reads.
    key_kernel[(triton.cdiv(key.shape[2], tiling.columns), key.shape[1], batch)](
        query, key, value, upstream, denominator, shift, delta, to_key, to_value,
        *(tensor.stride()[:3] for tensor in (query, key, value, upstream, to_key, to_value)),
        **sizes,
    )  # fmt: skip
    return to_query, to_key, to_value


def settings(
    query: Tensor, key: Tensor, value: Tensor, plan: KernelPlan, scaling: float, tiling: Tiling
) -> dict[str, Any]:
    """The arguments of all three kernels, by the names of their parameters, and how the compiler is to tile.

    Args:
        query, key, value, plan, scaling: Those of `forward`; of the tensors only shapes are read.
        tiling: Sizes of tiles and how many warps work on one.
    """
    dim, value_dim = query.shape[-1], value.shape[-1]
    return {
        "group": query.shape[1] // key.shape[1],
        "queries": query.shape[2],
        "keys": key.shape[2],
        "window": plan.window or UNBOUNDED,
        "scaling": scaling,
        "ACTIVATION": plan.activation,
        "NORMALIZED": plan.divides,
        "CAUSAL": plan.causal,
        "DIM": dim,
        "VALUE_DIM": value_dim,
        "WIDTH": max(NARROWEST, triton.next_power_of_2(dim)),
        "VALUE_WIDTH": max(NARROWEST, triton.next_power_of_2(value_dim)),
        "ROWS": tiling.rows,
        "COLUMNS": tiling.columns,
        "WIDEN": INTERPRETED,
        "num_warps": tiling.warps,
        "num_stages": tiling.stages,
    }


def _adjacent(tensor: Tensor) -> Tensor:
    """The kernels take any strides as long as channels are adjacent."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _like_projected(tensor: Tensor, dim: int) -> Tensor:
    """Fresh memory (batch, heads, tokens, dim), the heads of a token adjacent, as projections leave and take it."""
    batch, heads, tokens = tensor.shape[:3]
    return tensor.new_empty(batch, tokens, heads, dim).transpose(1, 2)
