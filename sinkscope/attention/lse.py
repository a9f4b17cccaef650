"""Log-sum-exp and sinks: two conventions, and the share of attention left to tokens.

L = log Σ_k e^{s_k} over tokens, b a sink's logit, L' = log(e^L + e^b). Kernels give L, or L' if the sink is part of
their sum; confusing the two is a silent error.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def token_share(
    lse: Float[Tensor, "*rows"], sink: Float[Tensor, "*#rows"], *, includes_sink: bool
) -> Float[Tensor, "*rows"]:
    """The share left to tokens by a sink without a value: σ(L − b) from L, 1 − e^{b − L'} from L' (`includes_sink`).

    Equal to e^L / (e^L + e^b) exactly, and finite for logits of any size. Multiply the output of attention over tokens
    by it; an output that comes with L' already includes it. If the sink takes nearly everything, L' has few digits of
    the rest: its error is absolute, so prefer a kernel that gives L. Gradients flow to both arguments. A log-sum-exp
    that is −inf (nothing is visible) leaves 0.
    """
    # Masked before the formulas, not after: the difference of two −∞ is NaN, and would make their gradients NaN too.
    gap = (lse - sink).masked_fill(lse == -torch.inf, -torch.inf)
    # L' ≥ b except for rounding, where an unclamped share would be negative and its logarithm in `without_sink` NaN.
    return -torch.expm1(-gap.clamp(min=0)) if includes_sink else torch.sigmoid(gap)


def with_sink(lse: Float[Tensor, "*rows"], sink: Float[Tensor, "*#rows"]) -> Float[Tensor, "*rows"]:
    """L' from L: log(e^L + e^b), finite for logits of any size."""
    return torch.logaddexp(lse, sink.expand_as(lse).to(lse.dtype))


def without_sink(lse: Float[Tensor, "*rows"], sink: Float[Tensor, "*#rows"]) -> Float[Tensor, "*rows"]:
    """L from L': L' + log(1 − e^{b − L'}); −inf if L' contains only the sink. A rounding error ε in L' becomes about ε
    e^{L' − L} in L: no digit is left if the sink takes everything.
    """
    return lse + torch.log(token_share(lse, sink, includes_sink=True))
