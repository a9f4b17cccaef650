"""A cache layer that keeps a set of keys per head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from sinkscope.caches.following import Coming, FollowedLayer
from sinkscope.caches.layers.groups import Group, join, split
from sinkscope.caches.layers.merging import merged
from sinkscope.caches.layers.rectangle import EMPTY, SPARE, Slots
from sinkscope.errors import InputError


@dataclass(eq=False)
class StackView:
    """A layer's views of its stack: its keys and values, where its next key goes, and room for one token's weights.

    `stack`: the identity of its stack (`Stack.identity`).
    """

    stack: object
    keys: Float[Tensor, "batch heads slots dim"]
    values: Float[Tensor, "batch heads slots value_dim"]
    into_keys: Int[Tensor, "batch heads 1 dim"]
    into_values: Int[Tensor, "batch heads 1 value_dim"]
    weights: Float[Tensor, "batch heads group 1 slots"]

    def put(self, key: Tensor, value: Tensor) -> None:
        """Store a token's key and value in the free slot."""
        self.keys.scatter_(2, self.into_keys, key)
        self.values.scatter_(2, self.into_values, value)


PLAIN = ("keys", "values", "places", "pads")  # rows other than notes
UNSAVED = ("slots", "samples", "groups", "view", "pending", "coming", "steady", "note_names")
NO_NUMBER = "a policy's score is NaN, so no key can be chosen"


class KeptSets(FollowedLayer, DynamicLayer):
    """Kept sets of keys, combined with the transformers layer that they replace.

    `limits`: how many keys each head may keep, (batch, kv_heads); `rectangle`: the largest of them; `count`: their
    mean, (batch,); all unknown before the first eviction. `whole`: nothing has been dropped. `gaps`: some slots may be
    empty. `samples`: what is known of each sample in addition to its keys. `groups`: two rectangles in place of
    `slots`, if heads keep different numbers of keys; `update` then returns tensors that merely have the shape of keys
    and values. `pending`: the current pass, until its keys have been attended to. `view`: views of a stack of layers,
    if the layer is in one. `steady`: how many tokens in a row came one by one and each replaced another key.
    `note_names`: the policy's notes by `repr`, to find them again in a file.
    """

    is_sliding = False
    is_croppable = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.slots = Slots()
        self.seen = 0
        self.whole, self.gaps = True, False
        self.limits: Tensor | None = None
        self.count: Tensor | None = None
        self.rectangle = 0
        self.samples: dict[object, Tensor] = {}
        self.pending: Coming | None = None
        self.groups: list[Group] | None = None
        self.view: StackView | None = None
        self.steady = 0
        self.note_names: dict[str, object] = {}

    @property
    def places(self) -> Int[Tensor, "batch heads stored"]:
        return self.slots["places"] if self.groups is None else join(self.groups)["places"]

    @property
    def used(self) -> int:
        """Slots of the larger rectangle."""
        return self.slots.used if self.groups is None else max(group.slots.used for group in self.groups)

    @property
    def held(self) -> list[Tensor]:
        """All tensors of stored keys."""
        return [rows for slots in self._all_slots() for rows in slots.rows.values()]

    @property
    def real(self) -> Bool[Tensor, "batch heads stored"]:
        """Which slots hold a real token's key."""
        return self.real_among(self.places)

    def real_among(self, places: Int[Tensor, "batch heads stored"]) -> Bool[Tensor, "batch heads stored"]:
        """Which of these places belong to real tokens."""
        return places >= (0 if self.pads is None else self.pads[:, None, None].to(places.device))

    @property
    def pads(self) -> Int[Tensor, " batch"] | None:
        return self.samples.get("pads")

    @property
    def full(self) -> bool:
        """Whether a head may hold more keys than it is to keep."""
        return self.limits is not None and (self.slots.used > self.rectangle or self.gaps)

    def notes_of(self, slots: Slots) -> Mapping[object, Tensor]:
        """Notes of stored keys and of samples, by note."""
        return NotesView(slots, self.samples)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        coming = self.taken(key_states)
        if self.view is not None:  # one token: for several, the cache has dissolved the stack
            self.view.put(key_states, value_states)
            self.slots.used, self.slots.displaced = self.slots.used + 1, False
            self.seen, self.pending = coming.total, coming
            return self.view.keys, self.view.values
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if coming.queries == 1:
            columns = torch.tensor(coming.seen, device=key_states.device)[None]
        else:
            columns = torch.arange(coming.seen, coming.total, device=key_states.device)
        # Places are an expanded view: until they are first copied, all samples and heads share one row.
        new = {"keys": key_states, "values": value_states, "places": columns.expand(*key_states.shape[:2], -1)}
        if self.groups is not None and coming.queries > 1:
            self.slots, self.groups = join(self.groups), None
        for slots, rows in self._shared(new):
            slots.append(**rows)
        if coming.pads is not None:
            self.samples["pads"] = coming.pads
        self.seen, self.pending = coming.total, coming
        if self.groups is not None:
            return self._stand_in(key_states), self._stand_in(value_states)
        return self.slots["keys"], self.slots["values"]

    def regroup(self) -> None:
        """Split into two rectangles if heads keep different numbers of keys and that saves enough."""
        self.groups = split(self.slots)
        if self.groups is not None:
            self.slots = Slots()

    def keep_samples(self, name: object, rows: Tensor) -> None:
        """Store a note of samples."""
        self.samples[name] = rows

    def forget(self, notes: Iterable[object]) -> None:
        """Drop these notes, of keys and of samples."""
        for note in notes:
            self.samples.pop(note, None)
            self.slots.rows.pop(note, None)

    def leave(self) -> None:
        """Leave the stack."""
        self.slots.settle()
        self.view, self.steady = None, 0

    def _shared(self, new: dict[str, Tensor]) -> list[tuple[Slots, dict[str, Tensor]]]:
        if self.groups is None:
            return [(self.slots, new)]
        return [(group.slots, {name: rows[:, group.heads] for name, rows in new.items()}) for group in self.groups]

    def _stand_in(self, like: Tensor) -> Tensor:
        # Of stride 0, by which `Evictor` notices if something else reaches the attention function.
        return like.new_zeros(1).expand(*like.shape[:2], self.used, like.shape[3])

    def _all_slots(self) -> list[Slots]:
        return [self.slots] if self.groups is None else [group.slots for group in self.groups]

    def lazy_initialization(self, *args: Tensor, **kwargs: Any) -> None:
        super().lazy_initialization(*args, **kwargs)
        if args:  # transformers' own tensors stay empty: keys are stored in `slots`
            self.keys = self.values = None

    def get_seq_length(self) -> int:
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.used + query_length, self.seen - self.used

    def get_max_length(self) -> int:
        return -1

    def evict(
        self,
        scores: Float[Tensor, "batch heads stored"],
        limits: Int[Tensor, "batch heads"],
        count: Int[Tensor, " batch"],
        merges: str | None = None,
    ) -> None:
        """Keep the `limits` keys of highest score in each head, the newest among equals. A key of score −inf is never
        kept.

        `count`: the mean of `limits`, which later steps see as their budget. `merges`: how evicted keys are merged into
        kept ones (`merging.merged`).

        Raises `InputError` if a score is NaN, and if more keys have score +inf, which must stay, than may be kept.
        """
        self.leave()
        real = self.real
        if bool((scores.isnan() & real).any()):
            raise InputError(NO_NUMBER)
        scores = scores.masked_fill(~real, -torch.inf)
        self.limits, self.rectangle, self.count = limits, int(limits.max()), count
        must = (scores == torch.inf).sum(-1)
        if bool((must > limits).any()):
            raise InputError(
                f"{int(must.max())} keys of a head must stay (protected tokens, or the window of a policy that keeps "
                f"the latest), but it may keep {int(limits.min())}: raise the budget, protect fewer, or shorten the "
                "window"
            )
        held = torch.minimum(limits, (scores > -torch.inf).sum(-1))
        width = max(1, int(held.max()))  # if nothing is kept, as of padding alone, one slot is empty
        self.gaps = bool((held != width).any())
        if not self.gaps and width == self.slots.used:
            return
        # Stable sorts by place and then by score: the newest of equal scores come last, and the last ones stay.
        by_place = self.places.argsort(dim=-1, stable=True)
        order = by_place.gather(-1, scores.gather(-1, by_place).argsort(dim=-1, stable=True))[..., -width:]
        chosen = torch.arange(width, device=held.device) >= width - held[..., None]
        places = self.places.gather(-1, order).masked_fill(~chosen, EMPTY)
        # In the order of places again; empty slots (−1) come first, where `groups.split` cuts them off.
        index = order.gather(-1, places.argsort(dim=-1, stable=True))
        rows = None
        if merges is not None:
            # Before `keep`, which frees the evicted keys.
            rows = merged(self.slots["keys"], self.slots["values"], index, places.sort(-1).values >= 0, real, merges)
        # A full rectangle gets one slot more, for a next token that then replaces a key; any other one will grow.
        self.slots.keep(index, max(SPARE, width // 8) if self.rectangle > width else 1)
        # `keep` has copied real places into empty slots too.
        self.places.copy_(places.sort(-1).values)
        if rows is not None:
            self.slots["keys"].copy_(rows[0])
            self.slots["values"].copy_(rows[1])
        self.whole = False

    def evict_one(self, scores: Float[Tensor, "batch heads stored"]) -> None:
        """Evict after one more token, in place: the last slot moves to the slot of the evicted key."""
        assert self.limits is not None
        surplus = self.slots.used > self.rectangle
        if not surplus and not self.gaps:
            return
        self.whole = self.whole and not surplus
        if not self.gaps and self.pads is None:
            self.slots.overwrite(oldest_of_lowest(scores, self.places))
            self.steady += 1
            return
        real = self.real
        scores = scores.masked_fill(~real, -torch.inf)  # scores of padding are arbitrary, even NaN
        # With a surplus slot, each head frees one: a real key's if it is over its limit, else an empty one or padding.
        over = (real.sum(-1) > self.limits)[..., None]
        leaves = torch.where(over, real, ~real)
        lowest = _lowest(scores.masked_fill(~leaves, torch.inf))
        # `seen` is above every place, so argmin finds the oldest candidate.
        places = self.places.masked_fill(~(leaves & (scores <= lowest)), self.seen)
        index = places.argmin(-1, keepdim=True)
        if surplus:
            self.slots.overwrite(index)
        else:
            # No slot is surplus, so nothing moves: a head over its limit gets an empty slot in place of the key.
            emptied = torch.where(over, EMPTY, self.places.gather(-1, index))
            self.places.scatter_(-1, index, emptied)

    def round_new(self, rounding: Callable[[Tensor], Tensor], since: int) -> None:
        """Replace kept keys and values from column `since` on by what `rounding` returns for them."""
        new = (self.places >= since)[..., None]
        for name in ("keys", "values"):
            stored = self.slots[name]
            stored.copy_(torch.where(new, rounding(stored.float()).to(stored.dtype), stored))

    @property
    def uncroppable(self) -> str | None:
        if not self.whole:
            return "dropped some"
        noted = [name for name in (*self.slots.rows, *self.samples) if name not in PLAIN]
        if any(getattr(note, "of_queries", True) for note in noted):
            return "has notes of what its queries attended to"
        return None

    def crop(self, tokens_to_remove: int) -> None:
        self.leave()
        if self.is_initialized and tokens_to_remove < 0:
            # A copy: the first rows may still be in memory of the pass that made them, which must not be written to.
            self.slots = Slots.of({name: self.slots[name][:, :, :tokens_to_remove] for name in self.slots.rows}, SPARE)
            self.seen += tokens_to_remove

    def state(self) -> dict[str, Any]:
        self.leave()
        fields = {name: value for name, value in vars(self).items() if name not in UNSAVED}
        groups = self.groups or []
        return fields | {
            "notes": {_name(name): rows for name, rows in self.samples.items()},
            "heads": [group.heads for group in groups],
            "empty": [group.gaps for group in groups],
            "kept": [{_name(name): slots[name] for name in slots.rows} for slots in self._all_slots()],
        }

    def restore(self, state: dict[str, Any]) -> None:
        notes, heads, kept, empty = (state.pop(name) for name in ("notes", "heads", "kept", "empty"))
        self.__dict__.update(state)
        self.samples = {self.note_names.get(name, name): rows for name, rows in notes.items()}
        if not kept[0]:
            return
        slots = [
            Slots.of({self.note_names.get(name, name): rows for name, rows in each.items()}, SPARE) for each in kept
        ]
        if not heads:
            self.slots = slots[0]
        else:
            self.groups = [Group(*each) for each in zip(heads, slots, empty, strict=True)]

    def reset(self) -> None:
        self.is_initialized = False  # first: transformers 5.17 would zero tensors that do not exist
        super().reset()
        self.slots, self.samples = Slots(), {}
        self.seen, self.whole, self.gaps, self.limits, self.count, self.rectangle = 0, True, False, None, None, 0
        self.pending = self.coming = self.groups = self.view = None
        self.steady = 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._over_batch(lambda rows: rows.index_select(0, beam_idx.to(rows.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._over_batch(lambda rows: rows.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        self._over_batch(lambda rows: rows[indices])

    def offload(self) -> None:
        raise InputError(
            "this cache keeps places and scores with its keys and cannot be offloaded: leave that option out"
        )

    prefetch = offload

    def _over_batch(self, change: Callable[[Tensor], Tensor]) -> None:
        self.leave()
        with torch.inference_mode(False):
            for slots in self._all_slots():
                slots.over_batch(change)
            self.samples = {name: change(rows) for name, rows in self.samples.items()}
            self.limits = None if self.limits is None else change(self.limits)
            self.count = None if self.count is None else change(self.count)


class NotesView(Mapping[object, Tensor]):
    """Notes of keys and of samples, looked up on demand."""

    def __init__(self, slots: Slots, rows: Mapping[object, Tensor]) -> None:
        self._slots, self._rows = slots, rows

    def __getitem__(self, name: object) -> Tensor:
        return self._slots[name] if name in self._slots else self._rows[name]

    def __iter__(self) -> Iterator[object]:
        return iter((*self._slots.rows, *self._rows))

    def __len__(self) -> int:
        return len(self._slots.rows) + len(self._rows)


def _name(name: object) -> str:
    return name if isinstance(name, str) else repr(name)


class SlotsLayer(KeptSets):
    """A layer of full attention with kept sets."""


def oldest_of_lowest(scores: Tensor, places: Tensor) -> Int[Tensor, "batch heads 1"]:
    """The slot of the lowest score in each head, of the lowest place among equals. Raises as `_lowest` does."""
    lowest = _lowest(scores)
    return torch.where(scores == lowest, places, torch.iinfo(places.dtype).max).argmin(-1, keepdim=True)


def _lowest(scores: Tensor) -> Float[Tensor, "batch heads 1"]:
    """The lowest score of each head. Raises `InputError` if any score is NaN, which makes the lowest NaN too."""
    lowest = scores.amin(-1, keepdim=True)
    if bool(lowest.isnan().any()):
        raise InputError(NO_NUMBER)
    return lowest
