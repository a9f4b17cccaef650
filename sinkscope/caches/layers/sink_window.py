"""The first tokens and the last ones, in a gap buffer: ordered and contiguous, without a concatenation per step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from sinkscope.caches.following import Coming, FollowedLayer
from sinkscope.caches.layers.rectangle import SPARE
from sinkscope.caches.rotation import LayerRotation
from sinkscope.errors import InputError


@dataclass(frozen=True, eq=False)
class Shown:
    """Which keys the coming pass sees: the kept ones, its own, and the sinks for rows that have dropped tokens.

    `kept`: tokens kept from before. `sinks`: the number of sinks. `dropped`: whether a row has dropped tokens, (batch
    or 1, 1), or has by each query, (batch or 1, query); None if no row has. `by`: positions by which sinks are rotated
    forward, (batch or 1, 1 or query, 1 or sinks). `copies`: each query has its own copy of the sinks, all placed before
    the kept keys; otherwise one copy is written over the first kept rows. `everyone`: every row has dropped tokens,
    known without synchronizing with the device.
    """

    coming: Coming
    kept: int
    sinks: int
    dropped: Bool[Tensor, "batch queries"] | None = None
    by: Int[Tensor, "batch queries sinks"] | None = None
    copies: bool = False
    everyone: bool = False

    @property
    def length(self) -> int:
        """Keys, not counting copies."""
        return self.kept + self.coming.queries

    @property
    def extra(self) -> int:
        """Keys that are copies."""
        return self.sinks * self.coming.queries if self.copies else 0

    def pads(self) -> Int[Tensor, " batch"]:
        """Padding of each row, on the CPU."""
        pads = self.coming.pads
        return torch.zeros(self.coming.batch, dtype=torch.long) if pads is None else pads.cpu().long()

    def places(self) -> Int[Tensor, "batch 1 stored"]:
        """The column of each key; −1 for a copy that no query needs."""
        columns = torch.arange(self.coming.total - self.length, self.coming.total).expand(self.coming.batch, -1)
        if self.dropped is None or self.sinks == 0:
            return columns[:, None]
        dropped = self.dropped.cpu().expand(self.coming.batch, -1)
        first = self.pads()[:, None] + torch.arange(self.sinks)
        if self.copies:
            # (batch, query · sink), in the order in which `_with_copies` lays the keys out.
            front = torch.where(dropped[:, :, None], first[:, None], -1).flatten(1)
            return torch.cat([front, columns], 1)[:, None]
        front = torch.where(dropped, first, columns[:, : self.sinks])
        return torch.cat([front, columns[:, self.sinks :]], 1)[:, None]

    def mask(self, window: int, device: torch.device) -> Bool[Tensor, "batch 1 query stored"]:
        """What each query of a pass of several tokens sees, if it must see what it would see token by token."""
        coming = self.coming
        columns = torch.arange(coming.total - self.length, coming.total)[None, None]
        queries = torch.arange(coming.seen, coming.total)[None, :, None]
        pads = self.pads()[:, None, None]
        seen = (columns <= queries) & (columns >= pads)
        if self.dropped is not None:
            dropped = self.dropped.cpu()[:, :, None]
            # The sinks of a row that has dropped tokens are its copies. The first kept keys, which may be sinks that
            # `_stand` wrote for an earlier query, are always hidden by the window.
            seen = seen & (~dropped | (columns > queries - window))
            if self.copies:
                # Column i · sinks + j is query i's copy of sink j.
                own_copy = torch.eye(coming.queries, dtype=torch.bool).repeat_interleave(self.sinks, 1)[None]
                seen = torch.cat([(own_copy & dropped).expand(coming.batch, -1, -1), seen], -1)
        # A row that is all padding so far sees itself: the softmax of an empty set is NaN.
        alone = ~seen.any(-1, keepdim=True)
        seen[..., self.extra :] |= alone & (columns == queries)
        return seen[:, None].to(device)

    def chosen(self, indices: Tensor) -> Shown:
        """The same for these rows."""
        coming = self.coming
        pads = None if coming.pads is None else coming.pads[indices.to(coming.pads.device)]

        def rows(tensor: Tensor | None) -> Tensor | None:
            return tensor if tensor is None or len(tensor) == 1 else tensor[indices.to(tensor.device)]

        return replace(
            self,
            coming=replace(coming, pads=pads, batch=len(indices)),
            dropped=rows(self.dropped),
            by=rows(self.by),
        )


UNSAVED = ("rotation", "keys", "values", "coming", "_buffers", "_end", "_shown", "_standing")
Cached = Float[Tensor, "batch heads stored _"]  # values may be wider or narrower than keys
Pair = tuple[Tensor, Tensor]  # of keys and values


class SinkWindow(FollowedLayer, DynamicLayer):
    """Keys and values of each row's first `sinks` tokens and of its last `window`, the query included.

    New tokens are appended to a buffer. Attention sees its last `sinks + window` rows, with the sinks written over the
    first of them (those tokens are dropped anyway). The buffer grows with the text up to these rows and a sixteenth of
    the window; when it is full, the kept tokens move to the front. A row with padding keeps plain tokens until its own
    real tokens are too many, so transformers' mask stays correct.

    Before each pass the cache sets what the pass sees (`show`), and rotates the sinks of all layers at once.
    """

    is_croppable = False
    supports_early_init = False

    def __init__(self, sinks: int, window: int, rotation: LayerRotation, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sinks, self.window, self.rotation = sinks, window, rotation
        # `SinkTurner` notices new sinks by the identity of these tensors.
        self.first: Pair | None = None  # the sinks as they were cached; replaced, never overwritten
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self._buffers: Pair | None = None
        self._end = self._seen = 0
        self._shown: Shown | None = None
        self._standing: Pair | None = None

    @property
    def kept(self) -> int:
        """Tokens that the next pass still sees; its query is one of the window."""
        return min(self._seen, self.sinks + self.window - 1)

    @property
    def room(self) -> int:
        """The buffer's maximum number of rows."""
        return rows_of(self.sinks, self.window)

    def show(self, shown: Shown, standing: Pair | None) -> None:
        """Set what the coming pass sees; `standing`: the rotated sinks, written where rows have dropped tokens."""
        self._shown, self._standing = shown, standing

    def update(self, key_states: Cached, value_states: Cached, *args: Any, **kwargs: Any) -> Pair:
        """Store a pass's keys and values; returns what its queries see, as `get_mask_sizes` announced.

        The copies of a strict pass are additional: its mask is rewritten.
        """
        coming, shown = self.taken(key_states), self._shown
        if coming.seen != self._seen or shown is None or shown.coming is not coming:
            raise InputError(f"a pass starts at {coming.seen}, but its cache has seen {self._seen} tokens")
        if self._buffers is None:
            self.lazy_initialization(key_states, value_states)
        self._keep_first(coming, (key_states, value_states))
        returned = self._append((key_states, value_states))
        if shown.copies:
            returned = self._with_copies(shown, returned)
        elif self._standing is not None:
            self._stand(shown, returned)
        self._standing = None
        self._seen = coming.total
        return returned

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        length = self.kept + query_length
        return length, self._seen + query_length - length

    def get_seq_length(self) -> int:
        """Tokens seen, by which `generate` and masks count."""
        return self._seen

    @property
    def places(self) -> Int[Tensor, "batch heads stored"]:
        if self._shown is None:
            raise InputError("nothing is cached yet, so there are no places")
        return self._shown.places()

    def turn(self, by: int) -> None:
        """Rotate the window by so many positions, after the origin has moved."""
        if self._buffers is None:
            return
        # `first` stays as it was cached: `Shown.by` takes the origin into account.
        for buffer, rotation in zip(self._buffers, (self.rotation.keys, self.rotation.values), strict=True):
            if rotation is not None:
                window = buffer[:, :, self._end - self.kept : self._end]
                window.copy_(rotation.turn(window, torch.tensor(by, device=window.device)))

    def lazy_initialization(self, key_states: Cached, value_states: Cached) -> None:
        with _plain():
            both = (key_states, value_states)
            rows = min(self.room, key_states.shape[2])
            keys, values = (states.new_zeros((*states.shape[:2], rows, states.shape[3])) for states in both)
            self._buffers = keys, values
            first, other = (states.new_zeros((*states.shape[:2], self.sinks, states.shape[3])) for states in both)
            self.first = first, other
        self.is_initialized = True

    def reset(self) -> None:
        self._forget()

    @property
    def uncroppable(self) -> str | None:
        return None if self.kept == self._seen else f"dropped all but {self.kept} of {self._seen}"

    def crop(self, tokens_to_remove: int) -> None:
        if self._buffers is None or tokens_to_remove >= 0:
            return
        # Nothing has been dropped (`uncroppable`), so the buffer has every token. Removed ones may remain in `first`
        # until `_keep_first` replaces them by those that follow, which is before anything is dropped.
        start = self._end - self._seen
        self._end, self._seen, self._shown = self._end + tokens_to_remove, self._seen + tokens_to_remove, None
        self._expose(start)

    def state(self) -> dict[str, Any]:
        fields = {name: value for name, value in vars(self).items() if name not in UNSAVED}
        kept = slice(self._end - self.kept, self._end)
        return fields | {"kept": None if self._buffers is None else [buffer[:, :, kept] for buffer in self._buffers]}

    def restore(self, state: dict[str, Any]) -> None:
        kept, first = state.pop("kept"), state.pop("first")
        self.__dict__.update(state)
        if kept is None:
            return
        keys, values = kept
        self.first, self._buffers, self._end = (first[0], first[1]), (keys, values), keys.shape[2]
        self._expose(0)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._choose(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        if indices.dtype == torch.bool:
            indices = indices.nonzero()[:, 0]
        self._choose(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self._buffers is not None:
            self._choose(torch.arange(len(self._buffers[0])).repeat_interleave(repeats))

    def offload(self) -> None:
        raise InputError("a streaming cache is small and stays on its layer's device: it cannot be offloaded")

    prefetch = offload

    def _forget(self) -> None:
        self.first = self._buffers = self._shown = self._standing = self.coming = None
        self._end = self._seen = 0
        self.keys = self.values = None
        self.is_initialized = False

    def _keep_first(self, coming: Coming, states: Pair) -> None:
        """Store each row's first real tokens that are among the new ones."""
        pads = [0] if coming.pads is None else coming.pads.tolist()
        if self.first is None or self.sinks == 0 or coming.seen >= max(pads) + self.sinks:
            return
        with _plain():
            device = states[0].device
            # (batch, sink): where sink j, which is in column pads + j, is among the new tokens.
            at = torch.tensor(pads)[:, None] + torch.arange(self.sinks) - coming.seen
            here = ((at >= 0) & (at < coming.queries)).expand(coming.batch, -1)[:, None, :, None].to(device)
            # Indices outside the pass are clamped for `gather` only; `here` discards what they read.
            at = at.clamp(0, coming.queries - 1).expand(coming.batch, -1)[:, None, :, None].to(device)

            def kept(new: Tensor, old: Tensor) -> Tensor:
                return torch.where(here, new.gather(2, at.expand(-1, new.shape[1], -1, new.shape[3])), old)

            self.first = kept(states[0], self.first[0]), kept(states[1], self.first[1])

    def _append(self, states: Pair) -> Pair:
        """Store new tokens; returns what the pass sees."""
        assert self._buffers is not None
        queries, kept, room = states[0].shape[2], self.kept, self._buffers[0].shape[2]
        # Both branches move the kept tokens to the front, which the concatenation below relies on.
        if self._end + queries > room and room < self.room:
            room = min(self.room, kept + queries + max(SPARE, (kept + queries) // 8))
            self._move(kept, room)
        elif self._end + queries > room:
            for buffer in self._buffers:  # clone: source and target may overlap
                buffer[:, :, :kept] = buffer[:, :, self._end - kept : self._end].clone()
            self._end = kept
        start = self._end - kept
        if self._end + queries <= room:
            for buffer, new in zip(self._buffers, states, strict=True):
                buffer.narrow(2, self._end, queries).copy_(new)
            self._end += queries
            self._expose(start)
            return self.keys, self.values  # type: ignore[return-value]
        # The pass is longer than the buffer: it sees a concatenation, and only what the next pass sees is stored.
        keys, values = (
            torch.cat([buffer[:, :, :kept], new], 2) if kept else new
            for buffer, new in zip(self._buffers, states, strict=True)
        )
        self._end = min(kept + queries, self.sinks + self.window - 1)
        for buffer, seen in zip(self._buffers, (keys, values), strict=True):
            buffer[:, :, : self._end] = seen[:, :, kept + queries - self._end :]
        self._expose(0)
        return keys, values

    def _move(self, kept: int, room: int) -> None:
        """Move what is kept to the front of larger buffers."""
        assert self._buffers is not None
        with _plain():
            keys, values = (buffer.new_zeros((*buffer.shape[:2], room, buffer.shape[3])) for buffer in self._buffers)
            for new, old in zip((keys, values), self._buffers, strict=True):
                new[:, :, :kept] = old[:, :, self._end - kept : self._end]
        self._buffers, self._end = (keys, values), kept

    def _stand(self, shown: Shown, returned: Pair) -> None:
        """Write the rotated sinks over the first rows of what is seen, for rows that have dropped tokens."""
        assert self._standing is not None
        for seen, sinks in zip(returned, self._standing, strict=True):
            # Usually a view of the buffer: tokens that have left the window, or sinks of an earlier pass. A row that
            # has dropped tokens needs sinks here from then on, so nothing of use is lost.
            front = seen.narrow(2, 0, self.sinks)
            if shown.everyone:
                front.copy_(sinks)
            elif shown.dropped is not None:
                front.copy_(torch.where(shown.dropped[..., None, None].to(front.device), sinks, front))

    def _with_copies(self, shown: Shown, returned: Pair) -> Pair:
        """One copy of the sinks per query, rotated for it, followed by what is seen."""
        assert self.first is not None
        assert shown.by is not None
        # (batch, 1, query, sink), against copies of (batch, heads, query, sink, dim).
        by = shown.by[:, None].to(returned[0].device)
        both = []
        for seen, first, rotation in zip(returned, self.first, (self.rotation.keys, self.rotation.values), strict=True):
            copies = first[:, :, None].expand(-1, -1, shown.coming.queries, -1, -1)
            copies = copies if rotation is None else rotation.turn(copies.contiguous(), by)
            both.append(torch.cat([copies.flatten(2, 3), seen], 2))
        return both[0], both[1]

    def _choose(self, indices: Tensor) -> None:
        """Keep these rows, in this order."""
        if self._buffers is None or self.first is None:
            return
        with _plain():
            keys, values, first, other = (
                tensor.index_select(0, indices.to(tensor.device)) for tensor in (*self._buffers, *self.first)
            )
        self._buffers, self.first = (keys, values), (first, other)
        self._shown = None if self._shown is None else self._shown.chosen(indices)
        self._expose(self._end - self.kept)

    def _expose(self, start: int) -> None:
        """Set the views of the stored keys and values that transformers reads."""
        assert self._buffers is not None
        self.keys, self.values = (buffer.narrow(2, start, self._end - start) for buffer in self._buffers)


def rows_of(sinks: int, window: int) -> int:
    """Rows of a buffer for so many sinks and a window, not counting the original sinks."""
    # All rows move to the front once per window / 16 tokens, which amounts to about 16 rows per token.
    return sinks + window + max(1, window // 16)


class _plain:
    """Tensors created inside can be written to later, in inference mode or not."""

    def __enter__(self) -> None:
        # Leaving inference mode turns gradients on, so they are switched off separately.
        self._modes = torch.inference_mode(False), torch.no_grad()
        for mode in self._modes:
            mode.__enter__()

    def __exit__(self, *error: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)
