"""When an operation may take the fused kernels."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.attention.kernels.entry import misfit, unavailable
from sinkscope.attention.kernels.plan import plan_of
from sinkscope.attention.kernels.record import confirmed
from sinkscope.attention.similarity import DotProduct
from sinkscope.attention.spec import AttentionSpec
from sinkscope.attention.visibility import Visibility


def obstacle(
    spec: AttentionSpec,
    visibility: Visibility,
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    *,
    biased: bool = False,
) -> str | None:
    """Why `path="auto"` does not take the fused kernels for this call; None where it may.

    They must be exact for the operation and the mask, fit the tensors, and have been confirmed on a device of this
    compute capability. `biased`: with a bias such as ALiBi.
    """
    plan = plan_of(spec.normalizer, visibility.mask)
    beside = (spec.temperature, spec.decay, spec.difference, *spec.slots)
    if plan is None or not isinstance(spec.similarity, DotProduct):
        return f"no fused kernel for '{spec.normalizer.kind}' weights under this mask"
    if biased or any(piece is not None for piece in beside):
        return "fused kernels know neither slots nor biases, temperature, decay or difference"
    if type(visibility) is not Visibility or visibility.key.valid is not None or visibility.query is not visibility.key:
        return "fused kernels take whole rows without padding, the mask as a rule"
    if not query.is_cuda:
        return f"fused kernels run on CUDA, not on {query.device.type}"
    if reason := misfit(query, key, value, plan) or unavailable():
        return f"fused kernels: {reason}"
    capability = torch.cuda.get_device_capability(query.device)
    if not confirmed(capability):
        return f"fused kernels are not confirmed on compute capability {capability[0]}.{capability[1]}"
    return None
