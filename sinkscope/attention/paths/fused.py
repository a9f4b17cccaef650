"""Fused kernels for the element-wise family on CUDA, taken where a comparison on this GPU found them exact."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.attention.combination import Combination
from sinkscope.attention.kernels import Specialization, confirm, fused, known, misfit, plan_of, unavailable
from sinkscope.attention.normalizers import Normalizer
from sinkscope.attention.scores import DotProduct
from sinkscope.attention.visibility import Visibility

DEVICES = ("cuda",)  # where the kernels run


def obstacle(
    spec: Combination,
    visibility: Visibility,
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    *,
    biased: bool = False,
) -> str | None:
    """Why `path="auto"` does not take the fused kernels for this call; None where it may.

    They must compute the operation and the mask, fit the tensors, and agree with the reference on this GPU, which is
    tried when they are first met.

    Args:
        spec: The operation.
        visibility: Which keys each query sees.
        query, key, value: q, k and v of the call.
        biased: Whether a bias such as ALiBi is added to the scores.
    """
    if query.is_cuda and torch.compiler.is_compiling():
        return "fused kernels are not traced by torch.compile"
    if reason := unfit(spec, visibility, query, key, value, biased=biased):
        return reason
    what = specialization(spec, visibility, query, value)
    if torch.cuda.is_current_stream_capturing() and known(what, query.device) is None:
        return "fused kernels: not yet compared with the reference, which cannot be done while a CUDA graph is captured"
    outcome = confirm(what, query.device)
    return None if outcome.problem is None else f"fused kernels: {outcome}"


def unfit(
    spec: Combination,
    visibility: Visibility,
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    *,
    biased: bool = False,
) -> str | None:
    """Why the fused kernels do not compute this; None where they do, if they are exact on this GPU. Arguments as in
    `obstacle`.
    """
    plan = plan_of(spec.normalizer, visibility.mask)
    beside = (spec.temperature, spec.first_key, spec.decay, spec.difference, *spec.slots)
    if plan is None or not isinstance(spec.similarity, DotProduct):
        return f"no fused kernel for '{spec.normalizer.kind}' weights under this mask"
    if biased or any(piece is not None for piece in beside):
        return "fused kernels know neither slots nor biases, temperature, decay or difference"
    if type(visibility) is not Visibility or visibility.key.valid is not None or visibility.query is not visibility.key:
        return "fused kernels take whole rows without padding, the mask as a rule"
    if not query.is_cuda:
        return f"fused kernels run on CUDA, not on {query.device.type}"
    if reason := misfit(query, key, value, plan) or unavailable(query.device):
        return f"fused kernels: {reason}"
    return None


def specialization(spec: Combination, visibility: Visibility, query: Tensor, value: Tensor) -> Specialization:
    """The kernels that this call takes, where `unfit` is None."""
    plan = plan_of(spec.normalizer, visibility.mask)
    assert plan is not None
    return Specialization(spec.normalizer, not plan.causal, query.dtype, query.shape[-1], value.shape[-1])


def attention(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    normalizer: Normalizer,
    visibility: Visibility,
    scaling: float,
) -> Float[Tensor, "batch heads query value_dim"]:
    """The operation where `obstacle` is None.

    Args:
        query, key, value: q, k and v.
        normalizer: Gives the weights.
        visibility: Which keys each query sees.
        scaling: Factor of q·k.
    """
    plan = plan_of(normalizer, visibility.mask)
    assert plan is not None
    return fused(query, key, value, plan.activation, plan.normalized, plan.mask, plan.window, scaling)
