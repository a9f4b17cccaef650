"""On a GPU: the element-wise family's fused kernels, forward and backward, T=2048, causal, bf16, against FlashAttention
through SDPA and against the eager reference.

Needs CUDA, where it measures whether or not the kernels are confirmed; elsewhere it says so.
Run: python -m benchmarks.cuda_kernels [--save]
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.sides import Figure, at_least, at_most, in_turns, report
from sinkscope.attention import CATALOG, attend
from sinkscope.attention.kernels import fused, plan_of

BATCH, HEADS, LENGTH, DIM, ROUNDS = 4, 16, 2048, 64, 20
OPERATIONS = ("sigmoid", "sigmoid_normalized", "sigmoid_bias", "elu", "relu", "softpick")


def drawn() -> Tensor:
    """Heads of a token adjacent, as projections leave them."""
    return torch.randn(BATCH, LENGTH, HEADS, DIM, device="cuda", dtype=torch.bfloat16).transpose(1, 2).requires_grad_()


def both_ways(attention: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[], None]:
    """One forward and one backward pass, waited for."""
    query, key, value = drawn(), drawn(), drawn()
    upstream = torch.randn_like(query)

    def run() -> None:
        torch.autograd.grad(attention(query, key, value), (query, key, value), upstream)
        torch.cuda.synchronize()

    return run


def flash(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def figures(name: str) -> list[Figure]:
    """Both comparisons of one operation, all three sides in turns."""
    spec = CATALOG[name]
    plan = plan_of(spec.normalizer, spec.mask)
    assert plan is not None, f"{name} has no fused kernel"
    seconds = in_turns(
        {
            "fused": both_ways(lambda q, k, v: fused(q, k, v, plan.activation, plan.normalized)),
            "flash": both_ways(flash),
            "eager": both_ways(lambda q, k, v: attend(q, k, v, spec, path="reference").output),
        },
        ROUNDS,
    )
    return [
        at_most(f"{name}: fused / FlashAttention", seconds["fused"], seconds["flash"], 1.5),
        at_least(f"{name}: eager / fused", seconds["eager"], seconds["fused"], 3.0),
    ]


def main() -> None:
    if not torch.cuda.is_available():
        print("no GPU here: nothing was measured")
        return
    report("cuda_kernels", [figure for name in OPERATIONS for figure in figures(name)])


if __name__ == "__main__":
    main()
