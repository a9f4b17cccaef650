"""Storage for kept keys and their notes: tensors that are allocated once and overwritten in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Int
from torch import Tensor

SPARE = 16  # slots added when storage grows, or an eighth of the stored keys if that is more
EMPTY = -1  # the place of an empty slot


class Slots:
    """Per-key rows, (batch, heads, capacity, …) each: keys, values, places and notes.

    Moving a key moves its rows in all of them. The first `used` slots are valid. `hole`: one free slot in each head,
    (batch, heads, 1). `displaced`: the hole may lie among the first `used` slots, in which case the slot after them is
    valid instead.
    """

    def __init__(self) -> None:
        self.rows: dict[object, Tensor] = {}
        self.used = 0
        self.hole: Tensor | None = None
        self.displaced = False

    @classmethod
    def of(cls, rows: Mapping[object, Tensor], room: int) -> Slots:
        """Copies of these rows, with capacity for `room` more."""
        made = cls()
        made.used = next(iter(rows.values())).shape[2]
        for name, old in rows.items():
            made.rows[name] = allocated(old, (*old.shape[:2], made.used + room, *old.shape[3:])).zero_()
            made.rows[name][:, :, : made.used].copy_(old)
        return made

    def __getitem__(self, name: object) -> Tensor:
        self.settle()
        return self.rows[name].narrow(2, 0, self.used)

    def __contains__(self, name: object) -> bool:
        return name in self.rows

    def append(self, **new: Tensor) -> None:
        """Add slots with these rows. Notes that are not among them get theirs from `note`.

        The first rows are kept without a copy: most of them are evicted at once, and the kept ones are copied then.
        """
        self.settle()
        count = next(iter(new.values())).shape[2]
        if not self.rows:
            self.rows.update(new)
            self.used = count
            return
        if self.used + count > self._capacity:
            self._grow(self.used + count, new)
        for name, rows in new.items():
            self.rows[name].narrow(2, self.used, count).copy_(rows)
        self.used += count

    def note(self, name: object, rows: Tensor) -> None:
        """Set a note's rows for the last slots, as many as `rows` has."""
        if name not in self.rows:
            shape = (*rows.shape[:2], self._capacity, *rows.shape[3:])
            self.rows[name] = allocated(rows, shape).zero_()
        self.rows[name][:, :, self.used - rows.shape[2] : self.used].copy_(rows)

    def keep(self, index: Int[Tensor, "batch heads n"], room: int) -> None:
        """Keep only the slots of `index`, in its order, in newly allocated tensors with capacity for `room` more."""
        self.settle()
        for name, rows in self.rows.items():
            kept = _taken(rows, index)
            self.rows[name] = allocated(kept, (*kept.shape[:2], kept.shape[2] + room, *kept.shape[3:])).zero_()
            self.rows[name][:, :, : kept.shape[2]].copy_(kept)
        self.used = index.shape[2]

    def overwrite(self, index: Int[Tensor, "batch heads 1"]) -> None:
        """In each head, move the last slot to slot `index`."""
        self.settle()
        self.used -= 1
        self._fill(index)

    def settle(self) -> None:
        """Move the slot after the first `used` into a hole among them."""
        if self.displaced and self.hole is not None:
            self._fill(self.hole)
            self.hole.fill_(self.used)
            self.displaced = False

    def over_batch(self, change: Callable[[Tensor], Tensor]) -> None:
        """Select, repeat or permute samples."""
        self.settle()
        self.hole = None
        self.rows = {name: change(rows) for name, rows in self.rows.items()}

    def _fill(self, index: Int[Tensor, "batch heads 1"]) -> None:
        for rows in self.rows.values():
            # A clone, because source and target share memory.
            rows.scatter_(2, in_heads(index, rows), rows.narrow(2, self.used, 1).clone())

    @property
    def _capacity(self) -> int:
        return next(iter(self.rows.values())).shape[2]

    def _grow(self, needed: int, new: dict[str, Tensor]) -> None:
        capacity = needed + max(SPARE, needed // 8)
        # Notes grow too; their new rows come later, through `note`.
        for name, like in (new | self.rows).items():
            rows = allocated(like, (*like.shape[:2], capacity, *like.shape[3:])).zero_()
            if name in self.rows:
                rows[:, :, : self.used].copy_(self.rows[name][:, :, : self.used])
            self.rows[name] = rows


def allocated(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Memory that can be written to later, whatever mode the model ran in."""
    with torch.inference_mode(False):
        return torch.empty(shape, dtype=like.dtype, device=like.device)


def in_heads(index: Int[Tensor, "batch heads n"], rows: Tensor) -> Tensor:
    """The index of each slot, expanded to rows with more dimensions and to several heads per cache head."""
    if rows.shape[1] != index.shape[1]:
        index = index.repeat_interleave(rows.shape[1] // index.shape[1], 1)
    if rows.ndim == 3:
        return index
    return index.reshape(*index.shape, *(1,) * (rows.ndim - 3)).expand(-1, -1, -1, *rows.shape[3:])


def _taken(rows: Tensor, index: Int[Tensor, "batch heads n"]) -> Tensor:
    return rows.gather(2, in_heads(index, rows))
