"""Any policy, with chosen and recent tokens that it must not evict."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from jaxtyping import Float
from torch import Tensor

from sinkscope.caches.call import EvictionCall
from sinkscope.caches.notes import Note
from sinkscope.caches.policies.policy import Wrapping, counted
from sinkscope.caches.sinks import among, checked, most_of, notes_of, parts_of
from sinkscope.sinks import Choice, Last, Tokens


@dataclass(frozen=True)
class Protect(Wrapping):
    """`policy`, except that the tokens of `protect` and the newest `recent` tokens are never evicted.

    `protect`: a choice that can be evaluated during a pass (`First`, `Last`, `Positions`, `TokenIds`, `Online`, or sums
    of them), or `Tokens`, by layer and head; None protects nothing. Raises `InputError` for other choices: give the
    tokens of `find_tokens(model, texts, choice)` instead.
    """

    protect: Choice | Tokens | None = None
    recent: int = 32

    def __post_init__(self) -> None:
        counted("Protect", "recent", self.recent)
        object.__setattr__(self, "protect", checked(self.protect))

    @cached_property
    def parts(self) -> tuple[Choice | Tokens, ...]:
        """The choices that `protect` is the sum of."""
        return parts_of(self.protect)

    @cached_property
    def needs(self) -> tuple[Note, ...]:
        noted = (note for part in self.parts for note in notes_of(part))
        return tuple(dict.fromkeys((*self.policy.needs, *noted)))

    @property
    def reads_weights(self) -> bool:
        return self.policy.reads_weights or any(note.reads_weights for note in self.needs)

    @property
    def least(self) -> int:
        last = max([self.recent, *(part.n for part in self.parts if isinstance(part, Last))])
        others = sum(most_of(part) for part in self.parts if not isinstance(part, Last))
        return max(self.policy.least, others + last + 1)

    @property
    def together(self) -> bool:
        return self.policy.together and not any(isinstance(part, Tokens) for part in self.parts)

    def newest(self, keys: int) -> int:
        return max(self.recent, self.policy.newest(keys))

    def describe(self, keys: int | None = None) -> dict[str, Any]:
        about = super().describe(keys)
        if isinstance(self.protect, Tokens):
            digest = hashlib.sha256(self.protect.mask.tobytes()).hexdigest()
            return about | {"protect": self.protect.describe() | {"mask": digest}}
        return about | {"protect": "none" if self.protect is None else str(self.protect)}

    def score(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
        stays = call.places >= call.total - self.recent
        for part in self.parts:
            stays = stays | among(part, call)
        scores = self.policy.score(call)
        if call.lowest and bool(stays.gather(-1, scores.argmin(-1, keepdim=True)).any()):
            scores = self.policy.score(replace(call, lowest=False))  # the key to evict is among the others
        return scores.masked_fill(stays, float("inf"))
