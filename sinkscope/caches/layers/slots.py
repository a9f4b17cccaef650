"""A cache layer of kept sets: per head, in rectangles that are allocated once and overwritten in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.cache_utils import DynamicLayer, LinearAttentionAndFullAttentionLayer, LinearAttentionLayer

from sinkscope.caches.following import Coming, FollowedLayer
from sinkscope.caches.merging import merged
from sinkscope.errors import InputError

SPARE = 16  # further slots where a rectangle grows; an eighth of what it holds where that is more
EMPTY = -1  # the place of a slot that holds nothing


class Slots:
    """Rows of what is known of each stored key, (batch, heads, capacity, …) each: keys, values, places, and notes.

    Whatever moves a key moves its rows in all of them. The first `used` slots count.
    """

    def __init__(self) -> None:
        self.rows: dict[object, Tensor] = {}
        self.used = 0

    def __getitem__(self, name: object) -> Tensor:
        return self.rows[name][:, :, : self.used]

    def __contains__(self, name: object) -> bool:
        return name in self.rows

    def append(self, **new: Tensor) -> None:
        """Further slots, with these rows; notes that are not among them get theirs by `note`."""
        count = next(iter(new.values())).shape[2]
        if not self.rows or self.used + count > self._capacity:
            self._grow(self.used + count, new)
        for name, rows in new.items():
            self.rows[name][:, :, self.used : self.used + count].copy_(rows)
        self.used += count

    def note(self, name: object, rows: Tensor) -> None:
        """Rows of a note for the last slots, as many as `rows` has."""
        if name not in self.rows:
            shape = (*rows.shape[:2], self._capacity, *rows.shape[3:])
            self.rows[name] = _allocated(rows, shape).zero_()
        self.rows[name][:, :, self.used - rows.shape[2] : self.used].copy_(rows)

    def keep(self, index: Int[Tensor, "batch heads n"], room: int) -> None:
        """Only the slots of `index`, in its order, in new rectangles with `room` more."""
        for name, rows in self.rows.items():
            kept = _taken(rows, index)
            self.rows[name] = _allocated(kept, (*kept.shape[:2], kept.shape[2] + room, *kept.shape[3:])).zero_()
            self.rows[name][:, :, : kept.shape[2]].copy_(kept)
        self.used = index.shape[2]

    def overwrite(self, index: Int[Tensor, "batch heads 1"]) -> None:
        """The last slot takes the place of that of `index`, in each head."""
        last = self.used - 1
        for rows in self.rows.values():
            at = _wide(index, rows)
            rows.scatter_(2, at, rows[:, :, last : last + 1].clone())
        self.used = last

    def over_batch(self, change: Callable[[Tensor], Tensor]) -> None:
        """Samples chosen, repeated or permuted."""
        self.rows = {name: change(rows) for name, rows in self.rows.items()}

    @property
    def _capacity(self) -> int:
        return next(iter(self.rows.values())).shape[2]

    def _grow(self, needed: int, new: dict[str, Tensor]) -> None:
        capacity = needed + max(SPARE, needed // 8)
        for name, like in (new | self.rows).items():
            rows = _allocated(like, (*like.shape[:2], capacity, *like.shape[3:])).zero_()
            if name in self.rows:
                rows[:, :, : self.used].copy_(self.rows[name][:, :, : self.used])
            self.rows[name] = rows


class KeptSets(FollowedLayer):
    """What a layer of kept sets has beside the kind of transformers layer that it stands for.

    `limits`: how many keys each head may keep, (batch, kv_heads), and `rectangle` the largest of them; both unknown
    before the first eviction. `whole`: nothing was dropped so far. `gaps`: some slots may be empty. `rows`: what is
    known of each sample beside its keys. `met`: what the pass under way brings, for as long as it is not attended.
    """

    is_sliding = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.slots = Slots()
        self.seen = 0
        self.whole, self.gaps = True, False
        self.limits: Tensor | None = None
        self.rectangle = 0
        self.rows: dict[object, Tensor] = {}
        self.met: Coming | None = None

    @property
    def places(self) -> Int[Tensor, "batch heads stored"]:
        return self.slots["places"]

    @property
    def real(self) -> Bool[Tensor, "batch heads stored"]:
        """Which slots hold a key of a real token."""
        least = 0 if self.pads is None else self.pads[:, None, None].to(self.places.device)
        return self.places >= least

    @property
    def pads(self) -> Int[Tensor, " batch"] | None:
        return self.rows.get("pads")

    @property
    def full(self) -> bool:
        """Whether a head may hold more than it is to keep."""
        return self.limits is not None and (self.slots.used > self.rectangle or self.gaps)

    def rows_of_notes(self) -> dict[object, Tensor]:
        """What is known of stored keys and of rows, by its name or note."""
        return {name: self.slots[name] for name in self.slots.rows} | self.rows

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        coming = self.taken(key_states)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        columns = torch.arange(coming.seen, coming.total, device=key_states.device)
        self.slots.append(keys=key_states, values=value_states, places=columns.expand(*key_states.shape[:2], -1))
        if coming.pads is not None:
            self.rows["pads"] = coming.pads
        self.seen, self.met = coming.total, coming
        return self.slots["keys"], self.slots["values"]

    def lazy_initialization(self, *args: Tensor, **kwargs: Any) -> None:
        super().lazy_initialization(*args, **kwargs)
        if args:  # transformers' own tensors stay empty: what is stored is in `slots`
            self.keys = self.values = None

    def get_seq_length(self) -> int:
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.slots.used + query_length, self.seen - self.slots.used

    def get_max_length(self) -> int:
        return -1

    def evict(
        self,
        scores: Float[Tensor, "batch heads stored"],
        limits: Int[Tensor, "batch heads"],
        merges: str | None = None,
    ) -> None:
        """Keep in each head the `limits` keys of highest score; of equal ones the newest. −inf is never kept.

        `merges`: how those that go are merged into those that stay (`merging.merged`).

        Raises `InputError` where a score is NaN, and where more keys have +inf, which must stay, than may be kept.
        """
        real = self.real
        if bool((scores.isnan() & real).any()):
            raise InputError("a policy's score is NaN: no key can be chosen by it")
        scores = scores.masked_fill(~real, -torch.inf)
        self.limits, self.rectangle = limits, int(limits.max())
        must = (scores == torch.inf).sum(-1)
        if bool((must > limits).any()):
            raise InputError(
                f"{int(must.max())} keys of a head are protected, but it may keep {int(limits.min())}: raise the "
                "budget, or protect fewer"
            )
        count = torch.minimum(limits, (scores > -torch.inf).sum(-1))
        self.gaps = bool((count != count.max()).any())
        if not self.gaps and int(count.max()) == self.slots.used:
            return
        width = int(count.max())
        by_place = self.places.argsort(dim=-1, stable=True)
        order = by_place.gather(-1, scores.gather(-1, by_place).argsort(dim=-1, stable=True))[..., -width:]
        chosen = torch.arange(width, device=count.device) >= width - count[..., None]
        places = self.places.gather(-1, order).masked_fill(~chosen, EMPTY)
        index = order.gather(-1, places.argsort(dim=-1, stable=True))
        rows = None
        if merges is not None:
            rows = merged(self.slots["keys"], self.slots["values"], index, places.sort(-1).values >= 0, real, merges)
        self.slots.keep(index, max(SPARE, width // 8) if self.rectangle > width else 1)
        self.places.copy_(places.sort(-1).values)
        if rows is not None:
            self.slots["keys"].copy_(rows[0])
            self.slots["values"].copy_(rows[1])
        self.whole = False

    def evict_one(self, scores: Float[Tensor, "batch heads stored"]) -> None:
        """The same after one further token, in place: the last slot takes that of the key that goes."""
        assert self.limits is not None
        surplus = self.slots.used > self.rectangle
        if not surplus and not self.gaps:
            return
        self.whole = self.whole and not surplus
        if not self.gaps and self.pads is None:
            self.slots.overwrite(_oldest_of_lowest(scores, self.places))
            return
        real = self.real
        over = (real.sum(-1) > self.limits)[..., None]
        leaves = torch.where(over, real, ~real)
        lowest = scores.masked_fill(~leaves, torch.inf).amin(-1, keepdim=True)
        places = self.places.masked_fill(~(leaves & (scores.masked_fill(~real, -torch.inf) <= lowest)), self.seen)
        index = places.argmin(-1, keepdim=True)
        if surplus:
            self.slots.overwrite(index)
        else:
            emptied = torch.where(over, EMPTY, self.places.gather(-1, index))
            self.places.scatter_(-1, index, emptied)

    def reset(self) -> None:
        super().reset()
        self.slots, self.rows = Slots(), {}
        self.seen, self.whole, self.gaps, self.limits, self.rectangle = 0, True, False, None, 0
        self.met = self.coming = None

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._over_batch(lambda rows: rows.index_select(0, beam_idx.to(rows.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._over_batch(lambda rows: rows.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        self._over_batch(lambda rows: rows[indices])

    def offload(self) -> None:
        raise InputError("this cache keeps places and scores beside its keys and cannot be offloaded: leave it out")

    prefetch = offload

    def _over_batch(self, change: Callable[[Tensor], Tensor]) -> None:
        with torch.inference_mode(False):
            self.slots.over_batch(change)
            self.rows = {name: change(rows) for name, rows in self.rows.items()}
            self.limits = None if self.limits is None else change(self.limits)


class SlotsLayer(KeptSets, DynamicLayer):
    """A layer of full attention with kept sets."""

    is_croppable = False


class HybridSlotsLayer(KeptSets, LinearAttentionAndFullAttentionLayer):
    """A layer of full attention with kept sets that has a recurrent state as well, which stays as it is."""

    def reorder_cache(self, beam_idx: Tensor) -> None:
        KeptSets.reorder_cache(self, beam_idx)
        LinearAttentionLayer.reorder_cache(self, beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        self.reorder_cache(indices.nonzero()[:, 0] if indices.dtype == torch.bool else indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.reorder_cache(torch.arange(len(self.places)).repeat_interleave(repeats))


def _oldest_of_lowest(scores: Tensor, places: Tensor) -> Int[Tensor, "batch heads 1"]:
    tied = scores == scores.amin(-1, keepdim=True)
    return places.masked_fill(~tied, torch.iinfo(places.dtype).max).argmin(-1, keepdim=True)


def _allocated(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Memory that may be written to later, in whatever mode the model ran."""
    with torch.inference_mode(False):
        return torch.empty(shape, dtype=like.dtype, device=like.device)


def _wide(index: Int[Tensor, "batch heads n"], rows: Tensor) -> Tensor:
    """The index of each slot, for rows of further dimensions, and of several heads to one of the cache's."""
    index = index.repeat_interleave(rows.shape[1] // index.shape[1], 1)
    return index.reshape(*index.shape, *(1,) * (rows.ndim - 3)).expand(-1, -1, -1, *rows.shape[3:])


def _taken(rows: Tensor, index: Int[Tensor, "batch heads n"]) -> Tensor:
    return rows.gather(2, _wide(index, rows))
