"""Policies that sum the attention that keys received from all queries so far."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.caches.call import EvictionCall
from sinkscope.caches.notes import Note, Received, ValueLengths
from sinkscope.caches.policies.policy import Policy, counted
from sinkscope.errors import InputError


@dataclass(frozen=True)
class H2O(Policy):
    """Heavy hitters and recent tokens: score = Σ_t A[t, k]; the share `recent` of the budget goes to the newest tokens.

    Source: Zhang et al. 2023, who give half of the budget to each; here the heads of a group are pooled by their mean.
    """

    recent: float = 0.5
    together = True

    def __post_init__(self) -> None:
        if not 0 <= self.recent < 1:
            raise InputError(f"H2O: recent is {self.recent!r}, expected a share of the budget, at least 0 and below 1")

    @property
    def needs(self) -> tuple[Note, ...]:
        return (Received(),)

    def newest(self, keys: int) -> int:
        return int(keys * self.recent)

    def score(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
        return recent_stay(call.notes[Received()], call, self.recent)


@dataclass(frozen=True)
class ObservedAttention(Policy):
    """Mean attention that a key received: α_k = Σ_{t ≥ k} A[t, k] / (T − k), as sinks are measured.

    Source: the definition of Gu et al. 2025, section 3; the name is kvpress's.
    """

    together = True

    @property
    def needs(self) -> tuple[Note, ...]:
        return (Received(),)

    def score(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
        return call.notes[Received()] / (call.total - call.places).clamp(min=1)


@dataclass(frozen=True)
class VATP(Policy):
    """Value-aware: score = Σ_t A[t, k] · ‖v_k‖₁. The first `sinks` tokens stay, because their values are short.

    `recent`: share of the budget for the newest tokens. Source: Guo et al. 2024b, with H2O and 20 sink tokens.
    """

    sinks: int = 20
    recent: float = 0.5
    together = True

    def __post_init__(self) -> None:
        counted("VATP", "sinks", self.sinks)
        if not 0 <= self.recent < 1:
            raise InputError(f"VATP: recent is {self.recent!r}, expected a share of the budget, at least 0 and below 1")

    @property
    def needs(self) -> tuple[Note, ...]:
        return (Received(), ValueLengths())

    def newest(self, keys: int) -> int:
        return int(keys * self.recent)

    @property
    def least(self) -> int:
        return int(self.sinks / (1 - self.recent)) + 1

    def score(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
        score = recent_stay(call.notes[Received()] * call.notes[ValueLengths()], call, self.recent)
        return score.masked_fill(call.positions < self.sinks, torch.inf)


def recent_stay(score: Tensor, call: EvictionCall, share: float) -> Float[Tensor, "batch kv_heads key"]:
    """`score`, with +inf for the newest tokens, a `share` of the budget."""
    if not share:
        return score
    newest = (call.budget * share).long()[:, None, None]
    return score.masked_fill(call.places >= call.total - newest, torch.inf)
