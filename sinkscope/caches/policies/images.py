"""Policies for texts that contain images."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinkscope.caches.call import EvictionCall
from sinkscope.caches.notes import Marked, Note, Received, RowNote
from sinkscope.caches.policies.policy import Policy, counted
from sinkscope.errors import InputError

NOWHERE = -(2**40)
HOW = ("averaged", "pivot", "weighted")


@dataclass(frozen=True)
class BorderColumns(RowNote):
    """The columns of tokens with these ids, (batch, n), padded with a very distant column."""

    ids: tuple[int, ...]

    def __repr__(self) -> str:
        return f"Columns(ids={self.ids})"  # its name in saved caches

    def after(self, call: EvictionCall, before: Tensor | None) -> Int[Tensor, "batch n"]:
        if call.ids is None:
            raise InputError("the borders of images are found by input_ids, but the model was given embeddings")
        columns = torch.arange(call.total - call.queries, call.total, device=call.ids.device)
        is_border = torch.isin(call.ids, torch.tensor(self.ids, device=call.ids.device))
        border_columns = columns.where(is_border, NOWHERE)[:, is_border.any(0)]
        return border_columns if before is None else torch.cat([before, border_columns], 1)


@dataclass(frozen=True)
class ImageEdges(Policy):
    """The first tokens, those around image borders, and the newest tokens.

    For an image from column b to column e (tokens `begin`, `end`), [b − 4, b + 8) and [e − 8, e + 4) rank above
    everything except the first `sinks` tokens and the newest `recent`, which stay; the rest ranks by place. Source:
    Yang et al. 2024 (SEED-Story), whose window counts images; here it counts tokens, and if the budget does not hold
    all borders, the newest ones stay.
    """

    begin: tuple[int, ...]
    end: tuple[int, ...]
    sinks: int = 4
    recent: int = 32

    def __post_init__(self) -> None:
        counted("ImageEdges", "sinks", self.sinks)
        counted("ImageEdges", "recent", self.recent)
        if not self.begin or not self.end:
            raise InputError("ImageEdges: name the tokens that begin and end an image, e.g. ImageEdges((5,), (6,))")

    @property
    def needs(self) -> tuple[Note, ...]:
        return (BorderColumns(self.begin), BorderColumns(self.end))

    @property
    def least(self) -> int:
        return self.sinks + self.recent + 1

    def newest(self, keys: int) -> int:
        return self.recent

    def fitted(self, newest: int) -> Policy:
        return replace(self, recent=max(1, min(self.recent, newest)))

    def score(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
        begin, end = (call.places[..., None] - call.notes[note][:, None, None] for note in self.needs)
        border = ((begin >= -4) & (begin < 8)).any(-1) | ((end >= -8) & (end < 4)).any(-1)
        stays = (call.positions < self.sinks) | (call.places >= call.total - self.recent)
        # 2^40 exceeds every place, and fp64 holds the sum exactly.
        return (call.places.double() + border * 2.0**40).masked_fill(stays, torch.inf)


@dataclass(frozen=True)
class LookM(Policy):
    """Keep text before images, by received attention, and merge evicted keys into kept ones.

    score = Σ_t A[t, k], with image tokens (`image`: their ids) below all text; the first `sinks` tokens and the newest
    `recent` stay. Each evicted key e is merged, with its value, into the kept key c of highest cosine similarity.
    "averaged": c ← mean of c and its evicted keys; "pivot": mean of c and all (e + c) / 2; "weighted": mean of c and
    all cos(e, c) · e. Source: Wan et al. 2024.
    """

    image: tuple[int, ...] = ()
    sinks: int = 4
    recent: int = 16
    how: str = "pivot"

    def __post_init__(self) -> None:
        counted("LookM", "sinks", self.sinks)
        counted("LookM", "recent", self.recent)
        if self.how not in HOW:
            raise InputError(f"LookM: how is {self.how!r}, expected one of {', '.join(HOW)}")

    @property
    def needs(self) -> tuple[Note, ...]:
        return (Received(), *((Marked(self.image),) if self.image else ()))

    @property
    def least(self) -> int:
        return self.sinks + self.recent + 1

    def newest(self, keys: int) -> int:
        return self.recent

    def fitted(self, newest: int) -> Policy:
        return replace(self, recent=max(1, min(self.recent, newest)))

    def ranks(self, call: EvictionCall) -> Tensor | None:
        return 1 - call.notes[Marked(self.image)] if self.image else None

    @property
    def merges(self) -> str | None:
        return self.how

    def score(self, call: EvictionCall) -> Float[Tensor, "batch kv_heads key"]:
        score = call.notes[Received()]
        if self.image:  # below 0 and in the same order, without losing digits
            score = torch.where(call.notes[Marked(self.image)] > 0, -1 / (1 + score), score)
        stays = (call.positions < self.sinks) | (call.places >= call.total - self.recent)
        return score.masked_fill(stays, torch.inf)
