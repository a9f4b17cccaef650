"""Linear attention is a recurrence whose state does not grow with the context.

Source: Katharopoulos et al. 2020.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import elu

from sinkscope.statistics.claims import CaseValue, EachWithin
from sinkscope_replication.theory.check import check
from sinkscope_replication.theory.repeated import LENGTHS
from sinkscope_replication.theory.subjects import Build, Caught, blocks, caught, gap, lab, ordinary

GUARD = 1e-8  # what the operation adds to the denominator


def recurrent(call: Caught, normalized: bool) -> Float[Tensor, "heads position dim"]:
    """y_t = φ(q_t)ᵀ S_t / √d, S_t = S_{t−1} + φ(k_t) v_tᵀ, φ = elu + 1, one token after the other.

    `normalized`: over φ(q_t)ᵀ z_t / √d, z_t = z_{t−1} + φ(k_t).
    """
    heads, tokens, dim = call.query.shape
    groups = heads // call.key.shape[0]
    query, key = elu(call.query) + 1, (elu(call.key) + 1).repeat_interleave(groups, 0)
    value = call.value.repeat_interleave(groups, 0)
    state, total = query.new_zeros(heads, dim, dim), query.new_zeros(heads, dim)
    rows = []
    for t in range(tokens):
        state = state + key[:, t, :, None] * value[:, t, None, :]
        total = total + key[:, t]
        row = (query[:, t, :, None] * state).sum(1) / dim**0.5
        if normalized:
            row = row / ((query[:, t] * total).sum(-1, keepdim=True) / dim**0.5 + GUARD)
        rows.append(row)
    return torch.stack(rows, 1)


def recurrence_agrees(build: Build = lab) -> Iterator[CaseValue]:
    """max |a layer's output − the recurrence on its queries, keys and values|."""
    for name in ("kernel_elu", "kernel_elu_normalized"):
        model = build(attention=name)
        for tokens in LENGTHS:
            for layer in range(len(blocks(model))):
                call = caught(model, ordinary(tokens), layer)
                apart = gap(recurrent(call, name.endswith("normalized")), call.output)
                yield CaseValue(f"{name}, T = {tokens}, layer {layer}", apart / float(call.output.abs().max()))


CHECKS = (
    check(
        "linear attention",
        "weights φ(q)·φ(k) / √d, φ = elu + 1, also over their sum: the output is that of a recurrence with a state of "
        "d × d numbers",
        "Katharopoulos et al. 2020",
        EachWithin(1e-10),
        recurrence_agrees,
    ),
)
