"""ACT: less weight on sinks other than the first, and more on the other tokens (Yu et al. 2024)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from sinkscope.errors import InputError
from sinkscope.hooks import OpenStream
from sinkscope.interventions.reweigh.call import Call
from sinkscope.interventions.reweigh.head_changes import Change, HeadChange, others_in, pairs
from sinkscope.interventions.reweigh.reweigh import check_factor

Sets = Bool[Tensor, "batch heads key"]


@dataclass(frozen=True)
class ACT(HeadChange):
    """A'[t, k] = β A[t, k] for the sinks k of a head, and A[t, j] (1 + (1 − β) m_t / r_t) for the other tokens j.

    m_t = Σ_S A and r_t = Σ_{not S} A over tokens; learned sinks keep their share. A query whose r is 0, or below the
    smallest normal number, keeps its row. S of a head in a row of the batch: the columns with α_k = Σ_t A[t, k] / (T −
    k) above `threshold` (bidirectional: over T), except the first of them. α divides by T − k, so most thresholds
    select the last columns, which few queries see. `guarded`: S only contains columns that at least half of the queries
    see, and never position 0. S is computed where a row begins, and kept for the passes that continue it.

    From the output o: o' = β o_S + o_R (1 + (1 − β) m / r), with both parts from the layer's own function on a part of
    the values: no T × T map, but two more passes per query head of a group, and one with a derivative for α. Observers
    of a layer read its weights before this change. `heads`: (layer, head), None for all. `seed`: as many random columns
    instead of S, among those that may be in it: the control.

    Source: Yu et al. 2024, whose code works on written-out maps of one sample, leaves the first row unchanged (this
    follows), and uses β = 0.4 and the threshold 0.1.
    """

    beta: float = 0.4
    threshold: float = 0.1
    guarded: bool = False
    heads: Sequence[Any] | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        check_factor("beta", self.beta)
        if not self.beta <= 1:
            raise InputError(f"beta = {self.beta!r}: expected a share of what sinks receive, from 0 to 1")
        check_factor("threshold", self.threshold)
        object.__setattr__(self, "heads", pairs(self.heads))

    def change(self, opened: OpenStream) -> Change:
        sinks: dict[nn.Module, Tensor] = {}
        return lambda call: calibrated(call, self._sets(call, sinks), self.beta)

    def control(self, generator: torch.Generator, model: nn.Module, inputs: Mapping[str, Any]) -> ACT:
        return replace(self, seed=int(torch.randint(2**31, (1,), generator=generator)))

    def _sets(self, call: Call, by_layer: dict[nn.Module, Tensor]) -> Sets:
        """The sinks among this call's keys, computed in the pass that began its rows."""
        keys = call.key.shape[2]
        if call.starts:
            held = slice(call.query.shape[2])  # a static cache has empty places after these keys
            by_layer[call.module] = sinks_of(call, self.threshold, guarded=self.guarded)[..., held]
            if self.seed is not None:
                eligible = _counted(call, guarded=self.guarded)[..., held]
                by_layer[call.module] = others_in(call.opened, by_layer[call.module], eligible, self.seed)
        sinks_here = by_layer.get(call.module)
        if sinks_here is None or len(sinks_here) != len(call.query):
            raise InputError(
                "ACT computes its sinks where rows begin, and this pass continues other rows: apply it before the "
                "prompt, one batch after the other"
            )
        # Later passes bring new keys, which are no sinks; a sliding cache may have lost the first ones.
        first = call.opened.seen + call.query.shape[2] - keys if not call.starts else 0
        return functional.pad(sinks_here, (0, max(0, first + keys - sinks_here.shape[-1])))[..., max(0, first) :][
            ..., :keys
        ]


def sinks_of(call: Call, threshold: float, *, guarded: bool) -> Sets:
    """The columns of each head whose attention received α exceeds the threshold, without the excluded one."""
    order = call.tokens.order
    total, causal = _tokens(call), call.opened.stream.stack == "decoder"
    queries = total - order if causal else total.expand(-1, order.shape[-1])
    received = call.received()
    alpha = received / queries.clamp(min=1)[:, None].to(received)
    sinks = (alpha > threshold) & _counted(call, guarded=guarded)[:, None]
    # The running count is 1 at the first selected column, which keeps its weight.
    return sinks if guarded else sinks & (sinks.cumsum(-1) > 1)


def calibrated(call: Call, sinks: Sets, beta: float) -> Float[Tensor, "batch heads query value_dim"]:
    """The output of an attention call with β on its sinks."""
    if beta == 1 or not bool(sinks.any()):
        return call.output
    on_sinks, on_rest = call.part(sinks), call.part(~sinks)
    mass, remaining = call.masses(sinks, ~sinks)
    # `part` leaves the values of slots out of both sums, and their weight does not change.
    slots = call.constant if call.has_slot_values else 0.0
    # Below the smallest normal number m / r overflows.
    divides = remaining >= torch.finfo(remaining.dtype).tiny
    changed = redistributed(on_sinks, on_rest, mass, remaining.where(divides, 1.0), beta) + slots
    return torch.where(divides[..., None], changed, call.output)


def redistributed(
    on_sinks: Float[Tensor, "batch heads query dim"],
    on_rest: Float[Tensor, "batch heads query dim"],
    mass: Float[Tensor, "batch heads query"],
    remaining: Float[Tensor, "batch heads query"],
    beta: float,
) -> Float[Tensor, "batch heads query dim"]:
    """β o_S + o_R (1 + (1 − β) m / r).

    Not computed from (o − o_S) / (1 − m), which loses all digits where m is near 1.

    Args:
        on_sinks, on_rest: o_S, o_R: Σ A v over the sinks and over the other keys.
        mass, remaining: m, r: Σ A over the same, r above 0.
        beta: β, the share that sinks keep, 0 to 1.
    """
    return beta * on_sinks + on_rest * (1 + (1 - beta) * mass / remaining)[..., None]


def _tokens(call: Call) -> Tensor:
    """The number of real tokens of each row, (batch, 1)."""
    valid = call.tokens.valid
    whole = torch.full((len(call.query), 1), call.query.shape[2], device=call.query.device)
    return whole if valid is None else valid.sum(-1, keepdim=True).expand(len(call.query), 1)


def _counted(call: Call, *, guarded: bool) -> Bool[Tensor, "batch key"]:
    """Keys that may be sinks: real tokens; guarded, those that at least half of the queries see, except the first."""
    order, total = call.tokens.order, _tokens(call)
    valid = torch.ones_like(order, dtype=torch.bool) if call.tokens.valid is None else call.tokens.valid
    if guarded:
        late = 2 * (total - order) < total
        valid = valid & ~(late & (call.opened.stream.stack == "decoder")) & (order > 0)
    return valid.expand(len(call.query), -1)
