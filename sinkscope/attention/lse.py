"""Log-sum-exp and sinks: two conventions, and what each leaves on tokens.

L = log Σ_k e^{s_k} over tokens, b a sink's logit, L' = log(e^L + e^b). Kernels give L, or L' where the sink is part of
their sum; the same number read as the other one is a silent error.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def token_share(
    lse: Float[Tensor, "*rows"], sink: Float[Tensor, "*#rows"], *, includes_sink: bool
) -> Float[Tensor, "*rows"]:
    """What a sink without a value leaves on tokens: σ(L − b) from L, 1 − e^{b − L'} from L' (`includes_sink`).

    Equal to e^L / (e^L + e^b) exactly, and finite for logits of any size. Multiply the output of attention over tokens
    alone by it; an output that goes with L' has it already. Where the sink takes nearly all, L' holds few digits of
    what is left: the error is that of L' in absolute terms, so ask a kernel for L. Gradients flow to both arguments. A
    log-sum-exp that is −inf (nothing is visible) leaves 0.
    """
    if not includes_sink:
        return torch.sigmoid(lse - sink)
    return (-torch.expm1((sink - lse).clamp(max=0))).masked_fill(lse == -torch.inf, 0.0)


def with_sink(lse: Float[Tensor, "*rows"], sink: Float[Tensor, "*#rows"]) -> Float[Tensor, "*rows"]:
    """L' from L: log(e^L + e^b), finite for logits of any size."""
    return torch.logaddexp(lse, sink.expand_as(lse).to(lse.dtype))


def without_sink(lse: Float[Tensor, "*rows"], sink: Float[Tensor, "*#rows"]) -> Float[Tensor, "*rows"]:
    """L from L': L' + log(1 − e^{b − L'}); −inf where the sink is all that L' holds.

    With a rounding error of ε in L', that of L is about ε e^{L' − L}: nothing is left of it where the sink takes all.
    """
    return lse + torch.log(token_share(lse, sink, includes_sink=True))
