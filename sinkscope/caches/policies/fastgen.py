"""FastGen: for each head, the cheapest set of keys that recovers its attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinkscope.caches.call import EvictionCall
from sinkscope.caches.notes import Heads, Marked, Note, Received, RowNote
from sinkscope.caches.policies.policy import Policy
from sinkscope.errors import InputError

FULL = 4  # the class of heads that keep everything


@dataclass(frozen=True)
class _Classes(RowNote):
    """(batch, kv_heads, 2): the class of each head, decided in a pass of several queries, and the number of tokens
    then.
    """

    of: FastGen
    one_pass = True

    def bytes_held(self, heads: Heads, tokens: int) -> int:
        return heads.kv * 2 * 8

    def after(self, call: EvictionCall, before: Tensor | None) -> Tensor:
        return before if before is not None and call.queries == 1 else self.of.classes(call)


@dataclass(frozen=True)
class FastGen(Policy):
    """At the end of the prompt, each head gets the first of these sets that recovers `threshold` of its attention.

    Special tokens; + punctuation; + the share `heavy` of tokens with the highest mean attention; + the newest share
    `window`; everything. A set recovers the mean over the pass's queries of Σ_{k in set} A[t, k], where a window is the
    last tokens before each query; averaged over a head group. Use a budget of 1.0: the sets determine their own sizes,
    and a smaller budget drops their oldest keys. Source: Ge et al. 2024. The threshold is a mean over queries, so heads
    that retrieve occasionally pass it too; `HeadClasses` has a stricter rule.
    """

    special: tuple[int, ...] = ()
    punctuation: tuple[int, ...] = ()
    first: int = 1
    heavy: float = 0.3
    window: float = 0.3
    threshold: float = 0.95

    def __post_init__(self) -> None:
        for name in ("heavy", "window", "threshold"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"FastGen: {name} is {getattr(self, name)!r}, expected a share between 0 and 1")

    @property
    def needs(self) -> tuple[Note, ...]:
        marks = [Marked(ids) for ids in (self.special, self.punctuation) if ids]
        return (*marks, Received(), _Classes(self))

    @property
    def drops(self) -> bool:
        return True

    def score(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
        chosen, before = call.notes[_Classes(self)].unbind(-1)
        sets = self._sets(call, before)
        newest = call.places >= call.total - (before * self.window).long()[..., None]
        sets = [*sets, sets[2] | newest, torch.ones_like(newest)]
        kept = torch.stack([(chosen[..., None] == number) & members for number, members in enumerate(sets)]).any(0)
        return call.places.double().masked_fill(~kept, -torch.inf)

    def classes(self, call: EvictionCall) -> Int[Tensor, "batch kv_heads pair"]:
        """The class of each head by this pass's queries, and the number of real tokens so far."""
        tokens = call.tokens[:, None].expand(-1, call.key.shape[1])
        sets = self._sets(call, tokens)
        reach = (tokens * self.window).long()[:, :, None, None]
        # (set, batch, kv_heads)
        mass = torch.zeros(4, *tokens.shape, device=tokens.device)
        for rows in call.row_parts():
            weights = call.weights(rows).mean(2)
            columns = torch.arange(call.total - call.queries, call.total, device=tokens.device)[rows]
            near = call.places[:, :, None] > columns[:, None] - reach
            for number, members in enumerate(sets):
                mass[number] += (weights * members[:, :, None]).sum((-1, -2))
            mass[3] += (weights * (sets[2][:, :, None] | near)).sum((-1, -2))
        # Real queries only: those of padding have weights of 0.
        queries = torch.minimum(call.tokens, torch.tensor(call.queries))[:, None]
        enough = torch.cat([mass / queries >= self.threshold, torch.ones_like(mass[:1], dtype=torch.bool)])
        # `argmax` finds the first set that is enough; the last one, everything, always is.
        return torch.stack([enough.int().argmax(0), tokens], -1)

    def _sets(
        self, call: EvictionCall, tokens: Int[Tensor, "batch kv_heads"]
    ) -> list[Bool[Tensor, "batch kv_heads key"]]:
        """Special tokens; with punctuation; with the heavy hitters of a text of so many `tokens`."""
        special = (call.positions < self.first) & call.real
        special = special | (call.notes[Marked(self.special)] > 0) if self.special else special
        marks = special | (call.notes[Marked(self.punctuation)] > 0) if self.punctuation else special
        mean = call.notes[Received()] / (call.total - call.places).clamp(min=1)
        rank = mean.masked_fill(~call.real, -1.0).argsort(-1, descending=True).argsort(-1)
        return [special, marks, marks | (rank < (tokens * self.heavy).long()[..., None])]
