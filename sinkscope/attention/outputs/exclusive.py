"""Exclusive self-attention: an output without the component along the token's own value."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.attention.pieces import Sizes, piece


@piece
class Exclusive:
    """z_t = y_t − (y_t·v_t) v_t / ‖v_t‖², with v_t the query's own value: only what is orthogonal to it leaves.

    The weight A_tt then has no effect, so the diagonal can take the mass that would otherwise go to a sink: compare
    `self_attention` with the sink rate. Values are as they are aggregated (after a value gate); with grouped heads v_t
    is that of the query's group. Where v_t = 0, z_t = y_t, and v_t gets no gradient. y_t may contain slots' values;
    pieces after this one (gates, biases) act on z_t. For a query that sees itself alone z_t is 0 up to rounding, which
    a norm right after attention (Gemma 2 and 3, OLMo 2) divides by about the root of its ε: there cached decoding and
    the full pass agree less closely in fp32 than elsewhere; in fp64 they agree. Source: Zhai 2026 (2603.09078).
    """

    kind: Literal["exclusive"] = "exclusive"
    needs_hidden = False

    def build(self, sizes: Sizes) -> ExclusiveModule:
        return ExclusiveModule()


class ExclusiveModule(nn.Module):
    """The projection, given the values of the queries' own tokens."""

    reads_own = True

    def forward(
        self, output: Float[Tensor, "batch heads query dim"], own_value: Float[Tensor, "batch kv_heads query dim"]
    ) -> Float[Tensor, "batch heads query dim"]:
        return orthogonal(output, own_value.repeat_interleave(output.shape[1] // own_value.shape[1], 1))


def orthogonal(y: Float[Tensor, "*rows dim"], v: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows dim"]:
    """y − (y·v) v / ‖v‖², in fp32 at least; y where v = 0."""
    common = torch.promote_types(torch.promote_types(y.dtype, v.dtype), torch.float32)
    wide, direction = y.to(common), v.to(common)
    # Scaled so that the largest channel is 1: squares of small values would vanish. The result does not depend on the
    # length of v, so no gradient belongs to the scale; at v = 0 the projection and its gradient are 0 / 1.
    largest = direction.detach().abs().amax(-1, keepdim=True)
    direction = direction / largest.masked_fill(largest == 0, 1.0)
    along = (wide * direction).sum(-1, keepdim=True) / direction.square().sum(-1, keepdim=True).clamp(min=1)
    return (wide - along * direction).to(y.dtype)
