"""Softmax attention with slots on the CPU's flash kernel without a further key: only the log-sum-exp changes.

With slots of logits b and values v*, and L' = log(e^L + Σ e^b), the output y is e^(L − L') times the kernel's plus
Σ e^(b − L') v*. The kernel's backward pass, given y and L', computes exactly the gradients of q, k and v; a slot's own
is ∂L/∂b = p (g·v* − g·y) with p = e^(b − L') and g the gradient of y. L itself is never differentiated, which on the
CPU would silently be wrong.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.attention.visibility import Visibility
from sinkscope.errors import InputError

FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def fits(query: Tensor, value: Tensor, visibility: Visibility) -> bool:
    """Whether the kernel computes it: on a CPU, heads of one width, no written mask."""
    unmasked = visibility.is_causal_square or visibility.is_full
    return query.device.type == "cpu" and query.shape[-1] == value.shape[-1] and unmasked


def attention(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key dim"],
    logits: Float[Tensor, "batch heads query slots"],
    values: Float[Tensor, "slots heads dim"],
    causal: bool,
    scaling: float,
) -> Float[Tensor, "batch heads query dim"]:
    """Softmax over slots and tokens. Raises `InputError` where differentiated twice."""
    return _Attention.apply(query, key, value, logits, values, causal, scaling)[0]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        query: Tensor, key: Tensor, value: Tensor, logits: Tensor, values: Tensor, causal: bool, scaling: float
    ) -> tuple[Tensor, Tensor]:
        output, lse = FORWARD(query, key, value, 0.0, causal, scale=scaling)
        # logaddexp, not log(e^L + e^b), where either term overflows fp32 above 88.
        total = torch.logaddexp(lse.to(logits.dtype), logits.logsumexp(-1))
        shares = (logits - total[..., None]).exp()
        output = output * (lse - total).exp()[..., None] + torch.einsum("bhts,shd->bhtd", shares, values)
        return output.to(query.dtype), total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.causal, ctx.scaling = inputs
        ctx.mark_non_differentiable(outputs[1])  # backward ignores L', so it must not look differentiable
        ctx.save_for_backward(*tensors, *outputs)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise InputError("slots on the flash kernel have no second derivative: ask for path='reference'")
        query, key, value, logits, values, output, total = ctx.saved_tensors
        # The kernel makes its weights exp(s − L) from the L that it is given: with L', those on tokens beside slots.
        given = BACKWARD(upstream, query, key, value, output, total, 0.0, ctx.causal, scale=ctx.scaling)
        with torch.autocast("cpu", enabled=False):
            wide = upstream.to(logits.dtype)
            shares = (logits - total[..., None]).exp()
            met = torch.einsum("bhtd,shd->bhts", wide, values) - (wide * output).sum(-1, keepdim=True)
            return *given, shares * met, torch.einsum("bhts,bhtd->shd", shares, wide), None, None
