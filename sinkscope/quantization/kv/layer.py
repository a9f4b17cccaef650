"""A cache layer that stores most tokens as packed codes, protected and newest tokens in full precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor
from transformers.cache_utils import DynamicLayer, LinearAttentionAndFullAttentionLayer, LinearAttentionLayer

from sinkscope.caches import Coming, FollowedLayer
from sinkscope.caches.sizes import Uncounted
from sinkscope.errors import InputError
from sinkscope.grids import (
    Grid,
    Rotated,
    RowFormat,
    Steps,
    check_finite,
    encode,
    inner_of,
    pack,
    rotation_of,
    stored_steps,
    unpack,
)
from sinkscope.quantization.kv.scheme import CacheScheme

ROOM = 32  # storage grows by one spare block per so many blocks


class Closed:
    """Keys or values of closed blocks: (batch, heads, block, …) of packed codes, steps and lower ends.

    A grid of 16 bits stores the numbers themselves; a format of single vectors what it makes of them. Blocks are
    written once.
    """

    def __init__(self, numbers: Grid | RowFormat, block: int) -> None:
        self.numbers, self.block = numbers, block
        self.parts: dict[str, Tensor] = {}
        self._width = 0

    def write(
        self,
        x: Float[Tensor, "n heads block dim"],
        protected: Bool[Tensor, "n 1 block 1"] | None,
        where: tuple[Int[Tensor, " n"], Int[Tensor, " n"]] | slice,
        blocks: int,
        batch: int,
    ) -> None:
        """Close blocks, in order.

        Args:
            x: The numbers of n blocks.
            protected: Tokens that set no range; None: none.
            where: Each block's row and number, or numbers that every row closes, row by row.
            blocks: How many the row with most of them has then.
            batch: Number of rows.
        """
        self._width = x.shape[-1]
        new = self._encoded(x, protected)
        self._make_room(blocks, batch, new)
        for name, tensor in new.items():
            if isinstance(where, slice):
                # (batch · blocks, heads, …) → (batch, heads, blocks, …)
                self.parts[name][:, :, where] = tensor.unflatten(0, (batch, -1)).transpose(1, 2)
            else:
                # Indices on both sides of a slice put their axis first: (n, heads, …), like `tensor`.
                self.parts[name][where[0], :, where[1]] = tensor

    def read(self, out: Float[Tensor, "batch heads blocks block dim"], first: int = 0) -> None:
        """Decode blocks, from number `first` on, into `out`; protected tokens get whatever their codes decode to."""
        count, grid = first + out.shape[2], self.numbers
        if not isinstance(grid, Grid):
            stored = tuple(part[:, :, first:count] for part in self.parts.values())
            out.copy_(grid.decode(stored, self._width))
            return
        if grid.exact:
            out.copy_(self.parts["plain"][:, :, first:count])
            return
        steps, codes = self.steps(count, first), grid.cut(self.codes(count, first))
        if grid.symmetric:
            # Stored codes start at 0; the difference may be negative, which uint8 cannot hold.
            codes = codes.to(torch.int16) - grid.top
        plain = out.dtype == torch.float32
        # In fp32, a view of `out`, so that blocks are decoded in place.
        cut = grid.cut(out) if plain else torch.empty(codes.shape, device=out.device)
        cut.copy_(codes).mul_(steps.step)  # in place: torch.mul would convert the codes to a tensor of their own
        if steps.low is not None:
            cut += steps.low
        if not plain:
            out.copy_(cut.reshape(out.shape))

    def steps(self, count: int, first: int = 0) -> Steps:
        """The ranges of blocks, from number `first` to before `count`."""
        low = self.parts.get("low")
        step = self.parts["step"][:, :, first:count].float()
        return Steps(step, None if low is None else low[:, :, first:count].float())

    def codes(self, count: int, first: int = 0) -> UInt8[Tensor, "batch heads blocks block dim"]:
        """The codes of blocks, from number `first` to before `count`, starting at 0."""
        packed = self.parts["codes"][:, :, first:count]
        assert isinstance(self.numbers, Grid)
        flat = unpack(packed, self.numbers.bits, self.block * self._width)
        return flat.unflatten(-1, (self.block, self._width))

    def over_batch(self, change: Callable[[Tensor], Tensor]) -> None:
        """Select, repeat or permute rows."""
        self.parts = {name: change(tensor) for name, tensor in self.parts.items()}

    def _encoded(self, x: Tensor, protected: Tensor | None) -> dict[str, Tensor]:
        grid = self.numbers
        if not isinstance(grid, Grid):
            # Formats saturate, which would turn an infinite number into a plain one.
            check_finite(x)
            return {str(number): part for number, part in enumerate(grid.encode(x))}
        if grid.exact:
            return {"plain": x}
        x = x.float()
        steps = stored_steps(x, grid, protected)
        codes = encode(x, steps, grid) + (grid.top if grid.symmetric else 0)
        # The casts are exact: `stored_steps` gives numbers that fp16 holds, and the codes were made with these.
        stored = {"codes": pack(codes.flatten(-2), grid.bits), "step": steps.step.to(torch.float16)}
        return stored if steps.low is None else stored | {"low": steps.low.to(torch.float16)}

    def _make_room(self, blocks: int, batch: int, new: dict[str, Tensor]) -> None:
        room = next(iter(self.parts.values())).shape[2] if self.parts else 0
        if blocks <= room:
            return
        # The first write gets just what it needs, as a prompt may be all; later ones get spare room, so that few copy.
        size = blocks + (blocks // ROOM if room else 0)
        with torch.inference_mode(False):  # so that passes in any mode can write to them
            for name, tensor in new.items():
                made = torch.zeros(
                    batch, tensor.shape[1], size, *tensor.shape[2:], dtype=tensor.dtype, device=tensor.device
                )
                if room:
                    made[:, :, :room] = self.parts[name]
                self.parts[name] = made


Pair = tuple[Tensor, Tensor]  # keys and values


class Decoded(Uncounted):
    """Keys and values of all columns as attention sees them, so that each block is decoded once.

    `closed`: how many tokens of each row are decoded from codes; the others are in full precision.
    """

    def __init__(self, states: Pair) -> None:
        self.states = tuple(x.new_empty(*x.shape[:2], 0, x.shape[3]) for x in states)
        self.closed = [0] * len(states[0])

    def append(self, new: Pair, seen: int) -> None:
        """Columns from number `seen` on."""
        total = seen + new[0].shape[2]
        if total > self.states[0].shape[2]:
            with torch.inference_mode(False), torch.no_grad():  # so that passes in any mode can write to them
                wider = tuple(x.new_empty(*x.shape[:2], total + total // 8 + ROOM, x.shape[3]) for x in self.states)
                for old, x in zip(self.states, wider, strict=True):
                    x[:, :, :seen] = old[:, :, :seen]
            self.states = wider
        for x, columns in zip(self.states, new, strict=True):
            x[:, :, seen:total] = columns


class SinkQuantizedLayer(FollowedLayer, DynamicLayer):
    """Keys and values of a layer of full attention, rounded block by block as a `CacheScheme` says.

    A block is rounded once, from the model's own numbers. Protected tokens are kept besides the codes, unrounded, and
    are part of no range; padding is in no block. A pass of one token gets what is stored once its token is in; in a
    pass of several tokens these see each other in full precision, as a prompt does in KIVI and in transformers'
    `QuantizedCache`.

    `width`: the number of channels that a key must have, if known. `stays_turned`: rotated keys and values are returned
    as they are stored, for attention that rotates queries and outputs instead. `keeps_decoded`: decoded blocks are kept
    besides their codes, which saves the time of decoding them for each token, and no memory.
    """

    is_sliding = False
    is_croppable = False
    stays_turned = False
    keeps_decoded = False
    seen: int
    _decoded: Decoded | None
    pads: Int[Tensor, " batch"] | None
    _protects: Bool[Tensor, "batch query"] | None

    def __init__(self, scheme: CacheScheme, width: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scheme, self.width = scheme, width
        self._forget()

    def protect(self, mask: Bool[Tensor, "batch query"] | None) -> None:
        """Which tokens of the next pass are protected."""
        self._protects = mask

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Pair:
        coming = self.taken(key_states)
        self._check(coming, key_states)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        new = self._turned((key_states.detach(), value_states.detach()))
        mask, self._protects = self._protects, None
        # Until `seen` grows below, it is the first column of this pass, and `before` counts what was closed before it.
        if mask is not None and bool(mask.any()):
            self._keep_protected(new, mask.to(key_states.device))
        else:
            mask = None
        self._append(new, mask)
        before = self._closed_tokens(coming.batch)
        if self.keeps_decoded:
            self._decode(before)
            kept = self._decoded or Decoded(new)
            self._decoded = kept
            kept.append(self._shown(new), self.seen)
        self.seen, self.pads = coming.total, coming.pads
        now = self._closed_tokens(coming.batch)
        # The order decides what this pass reads: a token what is stored once it is in, a prompt itself unrounded.
        if coming.queries == 1:
            self._close(before, now)
            returned = self._returned(now)
        else:
            returned = self._returned(before)
            self._close(before, now)
        # Last, because `_close` and `_returned` read the open columns.
        self._drop_closed(now)
        return returned

    def get_seq_length(self) -> int:
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.seen + query_length, 0

    def get_max_length(self) -> int:
        return -1

    @property
    def places(self) -> Int[Tensor, "batch heads stored"]:
        """Nothing is dropped: every column."""
        if self._open is None:
            raise InputError("nothing is cached yet")
        keys = self._open[0]
        return torch.arange(self.seen, device=keys.device).expand(len(keys), 1, -1)

    def lazy_initialization(self, *args: Tensor, **kwargs: Any) -> None:
        super().lazy_initialization(*args, **kwargs)
        if args:  # the tensors of transformers stay empty
            self.keys = self.values = None

    def reset(self) -> None:
        self.is_initialized = False  # first: transformers 5.17 would zero tensors that do not exist
        super().reset()
        self._forget()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._choose(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self._open is not None:
            self._choose(torch.arange(len(self._open[0])).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        self._choose(indices.nonzero()[:, 0] if indices.dtype == torch.bool else indices)

    def offload(self) -> None:
        raise InputError("a quantized cache stays on the device of its layer and cannot be offloaded")

    prefetch = offload

    def state(self) -> dict[str, Any]:
        raise InputError("a quantized cache cannot be saved: read the text again through a new one")

    def crop(self, *args: Any, **kwargs: Any) -> None:
        raise InputError("a quantized cache cannot be cropped: closed blocks have lost the original numbers")

    def _forget(self) -> None:
        self.coming: Coming | None = None
        self.seen = 0
        self.pads = None
        scheme = self.scheme
        self._sides = tuple(Closed(inner_of(side), scheme.block) for side in (scheme.keys, scheme.values))
        self._open: Pair | None = None  # the last columns, including all that are not closed
        self._open_protected: Tensor | None = None
        self._protects = None
        self._protected_at: tuple[Tensor, Tensor] | None = None  # rows and columns
        self._protected: Pair | None = None  # (token, heads, dim)
        self._decoded = None

    def _check(self, coming: Coming, keys: Tensor) -> None:
        if coming.seen != self.seen:
            raise InputError(
                f"a pass starts at {coming.seen}, but its cache has seen {self.seen} tokens: an earlier pass was "
                "interrupted; start again with a new cache"
            )
        if self.width is not None and keys.shape[-1] != self.width:
            raise InputError(
                f"keys of {keys.shape[-1]} channels in heads of {self.width}: this operation appends numbers to "
                "its keys that must not be rounded; use a DynamicCache"
            )

    def _closed_tokens(self, rows: int) -> list[int]:
        """How many tokens of each row are closed."""
        return [self.scheme.closed(max(0, self.seen - start)) for start in self._starts(rows)]

    def _starts(self, rows: int) -> list[int]:
        """The column of each row's first token."""
        return [0] * rows if self.pads is None else self.pads.tolist()

    def _turned(self, states: Pair) -> Pair:
        """Keys and values rotated, or rotated back: both by the same symmetric matrix."""
        sides = self.scheme.keys, self.scheme.values
        if not any(isinstance(side, Rotated) for side in sides):
            return states
        turns = (rotation_of(side, x.shape[-1]) for side, x in zip(sides, states, strict=True))
        return tuple(x if turn is None else turn(x.float()).to(x.dtype) for x, turn in zip(states, turns, strict=True))  # type: ignore[return-value]

    def _shown(self, states: Pair) -> Pair:
        """Stored keys and values as attention gets them."""
        return states if self.stays_turned else self._turned(states)

    def _append(self, new: Pair, mask: Tensor | None) -> None:
        """Append new columns to the open ones."""
        before = self._open
        self._open = new if before is None else tuple(torch.cat(both, 2) for both in zip(before, new, strict=True))  # type: ignore[assignment]
        if mask is None and self._open_protected is None:
            return
        shape = len(new[0]), 0 if before is None else before[0].shape[2]
        old = self._open_protected
        old = torch.zeros(shape, dtype=torch.bool, device=new[0].device) if old is None else old
        fresh = torch.zeros_like(new[0][:, 0, :, 0], dtype=torch.bool) if mask is None else mask.to(old.device)
        self._open_protected = torch.cat([old, fresh], 1)

    def _keep_protected(self, new: Pair, mask: Bool[Tensor, "batch query"]) -> None:
        rows, columns = mask.nonzero(as_tuple=True)
        states = tuple(state[rows, :, columns].clone() for state in new)
        where = rows, columns + self.seen
        if self._protected is not None and self._protected_at is not None:
            states = tuple(torch.cat(both) for both in zip(self._protected, states, strict=True))
            where = tuple(torch.cat(both) for both in zip(self._protected_at, where, strict=True))  # type: ignore[assignment]
        self._protected, self._protected_at = states, where  # type: ignore[assignment]

    def _close(self, before: list[int], now: list[int]) -> None:
        """Round the blocks that became complete."""
        assert self._open is not None
        block, batch, last = self.scheme.block, len(now), max(now) // self.scheme.block
        first = self.seen - self._open[0].shape[2]  # the first open column
        if self.pads is None:
            # Without padding, all rows close the same blocks, which a slice can cut.
            numbers = slice(before[0] // block, last)
            if numbers.start == last:
                return
            columns = slice(numbers.start * block - first, last * block - first)
            protected = None if self._open_protected is None else self._open_protected[:, columns]
            # (batch · blocks, 1, block, 1), in the order in which `cut` puts the blocks of its rows.
            protected = None if protected is None else protected.reshape(-1, 1, block, 1)
            for side, x in zip(self._sides, self._open, strict=True):
                # (batch, heads, blocks, block, dim) → (batch · blocks, heads, block, dim)
                cut = x[:, :, columns].unflatten(2, (-1, block)).transpose(1, 2).flatten(0, 1).contiguous()
                side.write(cut, protected, numbers, last, batch)
            return
        pairs = [(row, number) for row in range(batch) for number in range(before[row] // block, now[row] // block)]
        if not pairs:
            return
        device = self._open[0].device
        rows, blocks = torch.tensor(pairs, device=device).unbind(1)
        starts = torch.tensor(self._starts(batch), device=device)[rows] + blocks * block - first
        # (n, 1) and (n, block); around a slice they give (n, block, heads, dim).
        at = rows[:, None], starts[:, None] + torch.arange(block, device=device)
        protected = None if self._open_protected is None else self._open_protected[at][:, None, :, None]
        for side, x in zip(self._sides, self._open, strict=True):
            side.write(x[at[0], :, at[1]].transpose(1, 2), protected, (rows, blocks), last, batch)

    def _returned(self, closed: list[int]) -> Pair:
        """Keys and values of all columns; `closed`: how many tokens of each row are decoded from codes."""
        if self._decoded is not None:
            self._decode(closed)
            return tuple(x[:, :, : self.seen] for x in self._decoded.states)  # type: ignore[return-value]
        keys, values = (self._whole(side, x, closed) for side, x in zip(self._sides, self._open or (), strict=True))
        if self._protected is not None and self._protected_at is not None:
            rows, columns = self._protected_at
            keys[rows, :, columns], values[rows, :, columns] = self._protected
        return self._shown((keys, values))

    def _decode(self, closed: list[int]) -> None:
        """Put what blocks decode to in the place of the numbers that they were made of, of blocks closed since."""
        kept = self._decoded
        if kept is None or kept.closed == closed:
            return
        block = self.scheme.block
        # One read for all rows: from the first block that some row lacks to the last that some row has closed.
        first, last = min(kept.closed) // block, max(closed) // block
        read = []
        for side, x in zip(self._sides, kept.states, strict=True):
            out = x.new_empty(*x.shape[:2], last - first, block, x.shape[3])
            side.read(out, first)
            read.append(out.flatten(2, 3))
        shown = self._shown((read[0], read[1]))
        for row, (start, done, count) in enumerate(zip(self._starts(len(closed)), kept.closed, closed, strict=True)):
            for x, decoded in zip(kept.states, shown, strict=True):
                x[row, :, start + done : start + count] = decoded[row, :, done - first * block : count - first * block]
        # The blocks just decoded have overwritten protected columns.
        if self._protected is not None and self._protected_at is not None:
            rows, columns = self._protected_at
            for x, protected in zip(kept.states, self._shown(self._protected), strict=True):
                x[rows, :, columns] = protected
        kept.closed = closed

    def _whole(self, side: Closed, x: Tensor, closed: list[int]) -> Float[Tensor, "batch heads column dim"]:
        block, most = self.scheme.block, max(closed)
        if not most:
            # The open columns themselves, unless protected tokens are written over what is returned.
            return x.clone() if self._protected is not None else x
        batch, heads, stored_columns, width = x.shape
        whole = x.new_empty(batch, heads, self.seen, width)
        if self.pads is None:
            side.read(whole[:, :, :most].unflatten(2, (-1, block)))
            # `x` ends with column `seen` and may begin with closed ones, so it is counted from its end.
            whole[:, :, most:] = x[:, :, stored_columns - (self.seen - most) :]
            return whole
        # Read as if no row were padded, then moved to the end of each row's padding; rows with fewer blocks use a part.
        read = x.new_empty(batch, heads, most, width)
        side.read(read.unflatten(2, (-1, block)))
        for row, (start, count) in enumerate(zip(self._starts(batch), closed, strict=True)):
            end = start + count
            whole[row, :, :start] = 0  # padding, which no query sees
            whole[row, :, start:end] = read[row, :, :count]
            whole[row, :, end:] = x[row, :, stored_columns - (self.seen - end) :]
        return whole

    def _drop_closed(self, closed: list[int]) -> None:
        """Keep only the columns in full precision that the row with the most open ones needs."""
        assert self._open is not None
        starts = self._starts(len(closed))
        keep = self.seen - min(start + count for start, count in zip(starts, closed, strict=True))
        begin = self._open[0].shape[2] - keep
        # Cloned, because a view would keep the whole prompt, or a fused projection's output, in memory.
        if begin or any(state.untyped_storage().nbytes() > state.nbytes for state in self._open):
            self._open = self._open[0][:, :, begin:].clone(), self._open[1][:, :, begin:].clone()
        if begin and self._open_protected is not None:
            kept = self._open_protected[:, begin:].clone()
            self._open_protected = kept if bool(kept.any()) else None

    def _choose(self, indices: Tensor) -> None:
        """Keep these rows, in this order."""
        if self._open is None:
            return
        index = indices.to(self._open[0].device)

        def change(rows: Tensor) -> Tensor:
            return rows.index_select(0, index.to(rows.device))

        with torch.inference_mode(False), torch.no_grad():
            for side in self._sides:
                side.over_batch(change)
        if self._decoded is not None:
            self._decoded.states = tuple(map(change, self._decoded.states))
            self._decoded.closed = [self._decoded.closed[row] for row in index.tolist()]
        self._open = change(self._open[0]), change(self._open[1])
        self._open_protected = None if self._open_protected is None else change(self._open_protected)
        self.pads = None if self.pads is None else change(self.pads)
        if self._protected is not None and self._protected_at is not None:
            # (new row, protected token): a row that is chosen twice gets its tokens twice.
            rows, tokens = (index[:, None] == self._protected_at[0]).nonzero(as_tuple=True)
            self._protected_at = rows, self._protected_at[1][tokens]
            self._protected = self._protected[0][tokens], self._protected[1][tokens]


class HybridSinkQuantizedLayer(SinkQuantizedLayer, LinearAttentionAndFullAttentionLayer):
    """The same next to a recurrent state, which stays unchanged (Falcon-H1, Zamba2)."""

    def reset(self) -> None:
        LinearAttentionLayer.reset(self)
        SinkQuantizedLayer.reset(self)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        SinkQuantizedLayer.reorder_cache(self, beam_idx)
        LinearAttentionLayer.reorder_cache(self, beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        # Recurrent states can only be reordered, so every choice of rows is written as an order.
        self.reorder_cache(indices.nonzero()[:, 0] if indices.dtype == torch.bool else indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self._open is not None:
            self.reorder_cache(torch.arange(len(self._open[0])).repeat_interleave(repeats))
