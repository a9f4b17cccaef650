"""Attention by fused kernels, as a function of tensors."""

from __future__ import annotations

from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.attention.kernels.plan import KernelPlan
from sinkscope.errors import InputError

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDEST = 128  # channels of a head


def fused(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    activation: str,
    normalized: bool = False,
    mask: str = "causal",
    window: int | None = None,
    scaling: float | None = None,
) -> Float[Tensor, "batch heads query value_dim"]:
    """o_t = Σ_j w_tj v_j with w of `KernelPlan(activation, normalized, mask, window)`, s = scaling · q·k; O(T) memory.

    Sums are in fp32. Differentiable once, without atomics: gradients are the same in every run. This runs whether or
    not the kernels were compared with the reference: `confirmation` is what guards them.

    Args:
        query, key, value: q, k, v in fp32, bf16 or fp16, with heads of up to 128 channels; with fewer queries than keys
            the queries are the last ones.
        activation, normalized, mask, window: The fields of `KernelPlan`.
        scaling: None is dim^−1/2.

    Raises `InputError` for what the kernels cannot do, and where there is neither a GPU nor Triton's interpreter.
    """
    plan = KernelPlan(activation, normalized, mask, window)
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    if not scaling > 0:
        raise InputError(f"scaling = {scaling}: must be positive")
    if reason := misfit(query, key, value, plan) or unavailable(query.device):
        raise InputError(f"fused kernels: {reason}")
    from sinkscope.attention.kernels.launch import ElementwiseAttention

    with torch.cuda.device_of(query):
        return ElementwiseAttention.apply(query, key, value, plan, scaling)[0]


def misfit(query: Tensor, key: Tensor, value: Tensor, plan: KernelPlan) -> str | None:
    """Why the kernels cannot take these tensors; None where they can."""
    tensors = (query, key, value)
    heads, kv_heads = query.shape[1], key.shape[1]
    same = query.shape[0] == key.shape[0], query.shape[3] == key.shape[3], key.shape[:3] == value.shape[:3]
    if 0 in (*query.shape, *key.shape, *value.shape) or not all(same) or heads % kv_heads:
        return f"q {tuple(query.shape)}, k {tuple(key.shape)}, v {tuple(value.shape)} do not fit each other"
    if query.dtype not in DTYPES or any(tensor.dtype != query.dtype for tensor in tensors):
        dtypes = ", ".join(str(tensor.dtype).removeprefix("torch.") for tensor in tensors)
        return f"{dtypes} as q, k, v: one of float32, bfloat16, float16 for all"
    if any(tensor.device != query.device for tensor in tensors):
        return f"tensors on {sorted({str(tensor.device) for tensor in tensors})}: all on one device"
    if max(query.shape[-1], value.shape[-1]) > WIDEST:
        return f"heads of {max(query.shape[-1], value.shape[-1])} channels: at most {WIDEST}"
    if plan.causal and query.shape[2] > key.shape[2]:
        return f"{query.shape[2]} queries for {key.shape[2]} keys: queries are the last of the keys, so at most as many"
    return None


def unavailable(device: torch.device) -> str | None:
    """Why no kernel runs on this device; None where one does: on CUDA, and anywhere under Triton's interpreter."""
    if reason := _missing():
        return reason
    if device.type == "cuda":
        return None
    from sinkscope.attention.kernels.launch import INTERPRETED

    return (
        None if INTERPRETED else f"they run on a CUDA device, or anywhere with TRITON_INTERPRET=1, not on {device.type}"
    )


@cache
def _missing() -> str | None:
    try:
        import triton  # noqa: F401
    except ImportError as error:
        return "triton is not installed" if error.name == "triton" else f"triton cannot be imported: {error}"
    return None
