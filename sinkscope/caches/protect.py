"""Any policy, with sinks and recent tokens that it may not drop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.caches.call import EvictionCall
from sinkscope.caches.notes import Note
from sinkscope.caches.policies.policy import Policy, counted
from sinkscope.caches.sinks import SinkSet


@dataclass(frozen=True)
class Protect(Policy):
    """`policy`, but the tokens of `sinks` and the newest `recent` ones stay."""

    policy: Policy
    sinks: SinkSet
    recent: int = 32

    def __post_init__(self) -> None:
        counted("Protect", "recent", self.recent)

    @property
    def needs(self) -> tuple[Note, ...]:
        return tuple(dict.fromkeys((*self.policy.needs, *self.sinks.needs)))

    @property
    def reads_weights(self) -> bool:
        return self.policy.reads_weights or any(note.reads_weights for note in self.sinks.needs)

    @property
    def least(self) -> int:
        return max(self.policy.least, (self.sinks.most or 0) + self.recent + 1)

    @property
    def skipped(self) -> int:
        return self.policy.skipped

    @property
    def reads_rotation(self) -> bool:
        return self.policy.reads_rotation

    @property
    def together(self) -> bool:
        return self.policy.together and self.sinks.together

    @property
    def drops(self) -> bool:
        return self.policy.drops

    @property
    def merges(self) -> str | None:
        return self.policy.merges

    @property
    def rounding(self) -> Callable[[Tensor], Tensor] | None:
        return self.policy.rounding

    def score(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
        stays = self.sinks.among(call) | (call.places >= call.total - self.recent)
        return self.policy.score(call).masked_fill(stays, torch.inf)
