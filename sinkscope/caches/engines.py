"""Caches as serving engines run them: which keys they keep, at which positions, and in which number format.

No engine runs StreamingLLM as published. Each rule was read from the engine's source, named by `source`; no engine code
runs here. A text longer than the cache is read as if it were generated, token by token, though several tokens go
through the model at once where its attention takes a mask.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from sinkscope.caches.following import KEYLESS, Coming, FollowedLayer
from sinkscope.caches.layers.rectangle import allocated
from sinkscope.caches.rotation import ALIBI, LayerRotation, measured_rotations
from sinkscope.caches.strict import StrictReading, at_once
from sinkscope.errors import InputError, UnsupportedModelError, unknown
from sinkscope.grids import (
    IQ4_NL,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Fp8,
    Rotated,
    RowFormat,
    Stored,
    inner_of,
    rotation_of,
)
from sinkscope.hooks import family, kept_logits, unwrapped, with_cache

PIECE = 128  # tokens that go through the model at once
ROTATED = 64  # the size of the rotations of values, which must divide the width for anything to be rotated


@dataclass(frozen=True)
class ServedCache(ABC):
    """How an engine caches keys and values.

    `cache(model, cells)` returns a transformers cache with the same behavior. `cells`: the tokens for which the engine
    allocates memory in each layer; the engine's own rule decides which of them a query sees.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    streams: ClassVar[bool] = True
    """Whether old tokens are dropped, so that there is a number of cells. Otherwise all are kept, in fewer bits."""

    numbers: ClassVar[tuple[Rotated | RowFormat, Rotated | RowFormat] | None] = None
    """How keys and values are stored; None: in the model's dtype."""

    keep: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.keep, bool) or not isinstance(self.keep, int) or self.keep < 0:
            raise InputError(f"keep = {self.keep!r}: a number of first tokens, at least 0")

    @property
    def least(self) -> int:
        """The fewest cells with which it works."""
        return self.keep + 4

    def skips(self, layer: int) -> bool:
        """Whether a layer is cached as it is."""
        return False

    def keeping(self, first: int) -> ServedCache:
        """The same, keeping at least so many first tokens."""
        return replace(self, keep=max(self.keep, first))

    def cache(self, model: nn.Module, cells: int | None = None) -> EngineCache:
        """A cache with so many cells; None if nothing is dropped. Raises `InputError` for fewer than `least`."""
        return EngineCache(model, self, cells)

    def describe(self, cells: int | None = None) -> dict[str, Any]:
        """As JSON-able data."""
        about: dict[str, Any] = {"policy": "EngineCache", "engine": self.name, "source": self.source}
        about |= {"keep": self.keep} if self.streams else {}
        return about if cells is None else about | {"cells": cells}

    @abstractmethod
    def seen_at_once(self, cells: int) -> int:
        """How long a text can be before its first token is dropped."""

    @abstractmethod
    def staying(self, places: Int[Tensor, " stored"], query: int, cells: int) -> Bool[Tensor, " stored"]:
        """Which cached tokens are still there when the token at place `query` arrives."""

    @abstractmethod
    def turned(self, places: Int[Tensor, " stored"], query: int, cells: int) -> Int[Tensor, " stored"] | None:
        """Positions by which each key is rotated forward, relative to a query at its true place; None for none."""


@dataclass(frozen=True)
class LlamaCpp(ServedCache):
    """llama-server with `--context-shift --keep N`.

    When all cells but one are taken, half of the tokens after the first `keep` are dropped, and the rest move up by as
    many positions. So the window keeps its distances, the kept tokens come nearer, and between two shifts a query sees
    between half and all of the cells. The engine rotates keys of quantized caches in place and rounds them again; here
    they are rotated from the stored values.
    """

    name = "llama.cpp"
    source = "llama.cpp@b11081, tools/server/server-context.cpp, pre_decode"

    def seen_at_once(self, cells: int) -> int:
        return cells - 1

    def staying(self, places: Int[Tensor, " stored"], query: int, cells: int) -> Bool[Tensor, " stored"]:
        stays = torch.ones(len(places), dtype=torch.bool)
        if len(places) + 1 >= cells:
            # The engine caps n_keep at n_ctx − 4 and drops n_discard = (n_past − n_keep) / 2 tokens after it.
            keep = min(self.keep, cells - 4)
            stays[keep : keep + (len(places) - keep) // 2] = False
        return stays

    def turned(self, places: Int[Tensor, " stored"], query: int, cells: int) -> Int[Tensor, " stored"] | None:
        # The engine's query is at position len(places), so the kept tokens are nearer by the number of dropped ones.
        dropped = query - len(places)
        return torch.where(torch.arange(len(places)) < min(self.keep, cells - 4), dropped, 0) if dropped else None


@dataclass(frozen=True)
class MlxRotating(ServedCache):
    """mlx-lm's `RotatingKVCache(max_size, keep)`: the first `keep` tokens and the newest, all at their true positions.

    `make_prompt_cache` always keeps 4. mlx-lm reads a prompt longer than `max_size` under a mask of the last `max_size`
    tokens, which hides the kept ones; here it is read token by token, like generated text.
    """

    name = "mlx"
    source = "mlx-lm@d78bf58e, mlx_lm/models/cache.py, RotatingKVCache"

    keep: int = 4

    def seen_at_once(self, cells: int) -> int:
        return cells

    def staying(self, places: Int[Tensor, " stored"], query: int, cells: int) -> Bool[Tensor, " stored"]:
        return (places < self.keep) | (places > query - (cells - self.keep))

    def turned(self, places: Int[Tensor, " stored"], query: int, cells: int) -> Int[Tensor, " stored"] | None:
        return None


@dataclass(frozen=True)
class ExecuTorchSinks(ServedCache):
    """ExecuTorch's `use_attention_sink="SINKS,WINDOW"`: the first tokens, and a window in a ring buffer of twice its
    size.

    There are SINKS + 2 · WINDOW cells, and a query sees SINKS + WINDOW of them. Positions after the sinks are counted
    modulo 2 · WINDOW, for queries and keys alike; if the count wraps within the window, a query's position precedes
    those of keys before it.
    """

    name = "executorch"
    source = "executorch@cff6f4dd, examples/models/llama/source_transformation/attention_sink.py"

    keep: int = 4

    @property
    def least(self) -> int:
        return self.keep + 2

    def window(self, cells: int) -> int:
        """The window for so many cells."""
        return (cells - self.keep) // 2

    def seen_at_once(self, cells: int) -> int:
        return self.keep + self.window(cells)

    def staying(self, places: Int[Tensor, " stored"], query: int, cells: int) -> Bool[Tensor, " stored"]:
        return (places < self.keep) | (places > query - self.window(cells))

    def turned(self, places: Int[Tensor, " stored"], query: int, cells: int) -> Int[Tensor, " stored"] | None:
        ring = 2 * self.window(cells)

        def moved(place: Tensor) -> Tensor:
            """By how much a position is counted further on than it is."""
            return torch.where(place < self.keep, place, self.keep + (place - self.keep) % ring) - place

        # The query keeps its true place here, so its own move is subtracted from every key's.
        return moved(places) - moved(torch.tensor(query))


@dataclass(frozen=True)
class Rounded(ServedCache, ABC):
    """A cache that keeps every token in fewer bits."""

    streams = False

    def seen_at_once(self, cells: int) -> int:
        raise NotImplementedError

    def staying(self, places: Int[Tensor, " stored"], query: int, cells: int) -> Bool[Tensor, " stored"]:
        return torch.ones(len(places), dtype=torch.bool)

    def turned(self, places: Int[Tensor, " stored"], query: int, cells: int) -> Int[Tensor, " stored"] | None:
        return None


class _LlamaCppBlocks(Rounded):
    """llama.cpp's `-ctk NAME -ctv NAME` for the name of `blocks`, rotated by Hadamard matrices, which is the default.

    Keys are rotated in blocks of the largest power of two that divides their width, values in blocks of 64, both only
    if 64 divides the width. (LLAMA_ATTN_ROT_DISABLE=1 disables it.)
    """

    def __init_subclass__(cls, blocks: RowFormat) -> None:
        cls.name = f"llama.cpp-{blocks.name}"
        cls.source = (
            "llama.cpp@b9867, src/llama-kv-cache.cpp, attn_rot_k; "
            f"ggml/src/ggml-quants.c, quantize_row_{blocks.name}_ref"
        )
        cls.numbers = Rotated(blocks, multiple=ROTATED), Rotated(blocks, ROTATED, ROTATED)


class LlamaCppQ8(_LlamaCppBlocks, blocks=Q8_0()):
    """llama.cpp's `-ctk q8_0 -ctv q8_0`."""


class LlamaCppQ51(_LlamaCppBlocks, blocks=Q5_1()):
    """llama.cpp's `-ctk q5_1 -ctv q5_1`."""


class LlamaCppQ5(_LlamaCppBlocks, blocks=Q5_0()):
    """llama.cpp's `-ctk q5_0 -ctv q5_0`."""


class LlamaCppQ41(_LlamaCppBlocks, blocks=Q4_1()):
    """llama.cpp's `-ctk q4_1 -ctv q4_1`."""


class LlamaCppIq4(_LlamaCppBlocks, blocks=IQ4_NL()):
    """llama.cpp's `-ctk iq4_nl -ctv iq4_nl`."""


class LlamaCppQ4(_LlamaCppBlocks, blocks=Q4_0()):
    """llama.cpp's `-ctk q4_0 -ctv q4_0`."""


@dataclass(frozen=True)
class VllmFp8(Rounded):
    """vLLM's `--kv-cache-dtype fp8` without scales in the checkpoint: E4M3 with scale 1.0 and a maximum of 448.

    `skip`: layers of `--kv-cache-dtype-skip-layers`, which are not rounded.
    """

    name = "vllm-fp8"
    source = "vllm@0531c222, vllm/model_executor/layers/quantization/kv_cache.py"

    numbers = Fp8(), Fp8()
    skip: tuple[int, ...] = ()

    def skips(self, layer: int) -> bool:
        return layer in self.skip

    def describe(self, cells: int | None = None) -> dict[str, Any]:
        return super().describe(cells) | ({"skip": list(self.skip)} if self.skip else {})


_KINDS: tuple[type[ServedCache], ...] = (
    LlamaCpp,
    MlxRotating,
    ExecuTorchSinks,
    LlamaCppQ8,
    LlamaCppQ51,
    LlamaCppQ5,
    LlamaCppQ41,
    LlamaCppIq4,
    LlamaCppQ4,
    VllmFp8,
)
ENGINES: dict[str, type[ServedCache]] = {kind.name: kind for kind in _KINDS}
"""By name, as `engine` and `sinkscope cache --policy` take them."""


def engine(name: str, keep: int | None = None) -> ServedCache:
    """How an engine caches: a name of `ENGINES`, such as "llama.cpp", "llama.cpp-q8_0", "mlx" or "vllm-fp8".

    `keep`: number of first tokens to keep; by default the engine's own. Raises `InputError` for an unknown name, and
    for `keep` if nothing is dropped.
    """
    if name not in ENGINES:
        raise unknown("engine", str(name), ENGINES)
    kind = ENGINES[name]
    if keep is None:
        return kind()
    if not kind.streams:
        raise InputError(f"keep = {keep}: {name} drops nothing, so it keeps every token")
    return kind(keep)


@dataclass(frozen=True, eq=False)
class Piece:
    """Tokens that one pass reads as if they came one by one: for all of them, keys are rotated alike.

    `kept`: the stored tokens that the first of them sees, as indices; `by`: the rotations of these, None for none;
    `visible`: which of the kept and of the piece's own tokens each of them sees; `left`: which of all these are still
    stored after the last one, as indices.
    """

    kept: Int[Tensor, " kept"]
    by: Int[Tensor, " kept"] | None
    visible: Bool[Tensor, "query column"]
    left: Int[Tensor, " left"]

    @classmethod
    def after(cls, places: Int[Tensor, " stored"], seen: int, rule: ServedCache, cells: int, most: int) -> Piece:
        """The longest piece of at most so many tokens after `seen`, by the rule for single tokens."""
        stays = rule.staying(places, seen, cells)
        kept = stays.nonzero()[:, 0]
        first = held = places[stays]
        by = rule.turned(first, seen, cells)
        turned = torch.zeros_like(first) if by is None else by
        rows = [first]
        for query in range(seen + 1, seen + most):
            held = torch.cat([held, torch.tensor([query - 1])])
            held = held[rule.staying(held, query, cells)]
            again = rule.turned(held, query, cells)
            old = held < seen
            expected = torch.zeros_like(held)
            expected[old] = turned[torch.searchsorted(first, held[old])]
            if not torch.equal(expected, torch.zeros_like(held) if again is None else again):
                break
            rows.append(held)
        own = torch.arange(seen, seen + len(rows))
        columns = torch.cat([first, own])
        visible = torch.stack([torch.isin(columns, row) for row in rows]) | (columns == own[:, None])
        return cls(kept, by, visible, visible[-1].nonzero()[:, 0])


class EngineCache(StrictReading):
    """A cache that keeps, positions and rounds keys and values as an engine does (`engine`).

    `read` gives the logits of all tokens. A pass of several tokens that does not fit is read likewise; then only its
    last logits may be requested, and embeddings are refused. Layers with a window of their own are left to
    transformers. Rows must not be padded.

    Raises `UnsupportedModelError` for other kinds of layers, and for positions that cannot be rotated; `InputError` for
    cells that do not suit the engine, and in a pass that cannot be read as the engine would or follows an interrupted
    one.
    """

    def __init__(self, model: nn.Module, rule: ServedCache, cells: int | None = None) -> None:
        if rule.streams and (not isinstance(cells, int) or cells < rule.least):
            raise InputError(
                f"cells = {cells!r}: {rule.name} that keeps {rule.keep} tokens needs at least {rule.least}"
            )
        if not rule.streams and cells is not None:
            raise InputError(f"cells = {cells}: {rule.name} drops nothing, so there is no number of cells")
        self.rule, self.cells = rule, cells
        self.drops = rule.streams
        self._piece: Piece | None = None  # that the current pass reads
        self._mask: Tensor | None = None
        model = unwrapped(model)
        super().__init__(model)
        if rule.streams and family(model) in ALIBI:
            raise UnsupportedModelError(f"family '{family(model)}' has ALiBi, which counts the kept keys")
        rotations = measured_rotations(model) if rule.streams else {}
        for index, layer in enumerate(self.layers):
            if rule.skips(index):
                continue
            if type(layer) is DynamicLayer:
                self.layers[index] = EngineLayer(rule, cells, rotations.get(index))
            elif not isinstance(layer, DynamicSlidingWindowLayer):
                raise UnsupportedModelError(
                    f"family '{family(model)}', layer {index}: a {type(layer).__name__} keeps more than keys and values"
                )
        if not self.followed:
            raise UnsupportedModelError(f"family '{family(model)}' has no layer that sees everything")

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | self.rule.describe(self.cells)

    def expect(self, coming: Coming) -> None:
        if coming.pads is not None:
            raise InputError("padded rows: engines have none, so give rows of equal length")
        held = {layer.get_seq_length() for layer in self.layers if not isinstance(layer, KEYLESS)}
        if held != {coming.seen}:
            raise InputError(
                f"a pass starts at {coming.seen}, but layers of its cache have seen {min(held)} to {max(held)} tokens: "
                "an earlier pass was interrupted; start again with a new cache"
            )
        for layer in self.layers:
            if isinstance(layer, EngineLayer):
                layer.piece = self._piece
        super().expect(coming)

    def read(self, model: nn.Module, ids: Int[Tensor, "batch position"]) -> Iterator[Any]:
        """The model's outputs for `ids`, several tokens at a time, each as if the tokens came one by one.

        They continue what was read before. One at a time where attention takes no mask. Raises `InputError` for a model
        other than the cache's.
        """
        return self._read(model, ids, {})

    def _read(self, model: nn.Module, ids: Tensor, more: dict[str, Any]) -> Iterator[Any]:
        if unwrapped(model) is not self._the_model():
            raise InputError("this cache was made for another model: make one with engine(...).cache(model)")
        strict = self.cells is not None and at_once(unwrapped(model), self)
        most = ids.shape[1] if self.cells is None else PIECE if strict else 1
        while ids.shape[1]:
            if strict:
                assert self.cells is not None
                stored = next(layer for layer in self.layers if isinstance(layer, EngineLayer)).stored
                self._piece = Piece.after(stored, self.get_seq_length(), self.rule, self.cells, min(most, ids.shape[1]))
                self._mask = self._piece.visible[None, None]
            size = most if self._piece is None else len(self._piece.visible)
            # Closed before the `yield`: a suspended generator would leave these contexts open in its caller's code.
            try:
                with torch.no_grad(), self.strictly(unwrapped(model)) if strict else nullcontext():
                    output = model(input_ids=ids[:, :size], use_cache=True, **more, **with_cache(model, self))
            finally:
                self._piece = self._mask = None
            ids = ids[:, size:]
            yield output

    def mask_of(self, layer_idx: int, device: torch.device) -> Tensor | None:
        """Layers with a window of their own have transformers' mask."""
        if self._mask is None or not isinstance(self.layers[layer_idx], EngineLayer):
            return None
        self._mask = self._mask.to(device)
        return self._mask

    def read_ahead(self, model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
        """For a pass that does not fit: read all tokens but the last as if they came one by one."""
        ids, embeddings, seen = inputs.get("input_ids"), inputs.get("inputs_embeds"), self.get_seq_length()
        tokens = ids if isinstance(ids, Tensor) else embeddings
        if self.cells is None or self.strict or not isinstance(tokens, Tensor) or tokens.shape[1] < 2:
            return None
        if tokens.shape[1] <= max(0, self.rule.seen_at_once(self.cells) - seen):
            return None
        kept = inputs.get("logits_to_keep")
        if tokens is not ids or isinstance(kept, Tensor) or kept != 1:
            raise InputError(
                f"{tokens.shape[1]} tokens at once after {seen}, but {self.rule.name} with {self.cells} cells drops "
                "keys between them: read them with cache.read(model, input_ids), or give input_ids and ask for the "
                "last logits only (logits_to_keep=1)"
            )
        mask = inputs.get("attention_mask")
        if mask is not None and not (isinstance(mask, Tensor) and mask.ndim == 2 and bool(mask.all())):
            raise InputError("attention_mask: an engine's cache takes texts without padding")
        for _ in self._read(model, ids[:, :-1], kept_logits(model)):
            continue
        rest = dict(inputs) | {"input_ids": ids[:, -1:]}
        if (positions := inputs.get("position_ids")) is not None:
            rest["position_ids"] = positions[..., -1:]
        return rest


class EngineLayer(FollowedLayer, DynamicLayer):
    """Keys and values of one layer as an engine holds them.

    Streams allocate all their cells in the first pass, as the engine does; the cached tokens come first, in text order.
    """

    is_croppable = False
    supports_early_init = False

    def __init__(self, rule: ServedCache, cells: int | None, rotation: LayerRotation | None) -> None:
        super().__init__()
        self.rule, self.cells, self.rotation = rule, cells, rotation
        self._places = self._shown = torch.empty(0, dtype=torch.long)  # of the stored tokens; of those shown last
        self._stays: Tensor | None = None
        self.piece: Piece | None = None
        self._seen = 0
        self._held: list[Stored] = []  # codes and scales of keys, and of values
        self._dtype = torch.float32

    @property
    def stored(self) -> Int[Tensor, " stored"]:
        """The places of the stored tokens."""
        return self._places

    @property
    def places(self) -> Int[Tensor, "batch heads stored"]:
        return self._shown[None, None]

    def expect(self, coming: Coming) -> None:
        super().expect(coming)
        self._stays = None
        # Decided before masks are made: `get_mask_sizes` has to announce what `update` will return.
        if self.cells is not None and self.piece is None and coming.queries == 1 and len(self._places):
            stays = self.rule.staying(self._places, coming.seen, self.cells)
            self._stays = None if bool(stays.all()) else stays

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        kept = len(self._places) if self._stays is None else int(self._stays.sum())
        kept = kept if self.piece is None else len(self.piece.kept)
        return kept + query_length, self._seen - kept

    def get_seq_length(self) -> int:
        """Tokens seen, by which `generate` and masks count."""
        return self._seen

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        coming, states = self.taken(key_states), (key_states, value_states)
        self._dtype = key_states.dtype
        sides = self.rule.numbers or (None, None)
        new = [encode(x, numbers) for x, numbers in zip(states, sides, strict=True)]
        own = torch.arange(coming.seen, coming.total)
        by = None
        if self.piece is not None:
            shown, by = self._show(new, own), self.piece.by
        else:
            if self._stays is not None:
                self._drop(self._stays.nonzero()[:, 0])
            start = len(self._places)
            self._store(new, start)
            self._places = self._shown = torch.cat([self._places, own])
            shown = [tuple(part[:, :, : len(self._places)] for part in parts) for parts in self._held]
            # A pass of several tokens fits as a whole (`read_ahead`): nothing has been dropped or renumbered yet.
            if self.cells is not None and coming.queries == 1:
                by = self.rule.turned(self._places[:-1], coming.seen, self.cells)
        self._stays = self.piece = None
        self._seen, self.is_initialized = coming.total, True
        keys, values = (
            decode(parts, numbers, x.shape[-1], self._dtype)
            for parts, numbers, x in zip(shown, sides, states, strict=True)
        )
        if by is not None and self.rotation is not None:
            # The last keys are the queries' own, which are not rotated.
            by = torch.cat([by, by.new_zeros(coming.queries)]).to(keys.device)
            keys = keys if self.rotation.keys is None else self.rotation.keys.turn(keys, by)
            values = values if self.rotation.values is None else self.rotation.values.turn(values, by)
        return keys, values

    def _drop(self, kept: Int[Tensor, " kept"]) -> None:
        """Leave only these of the stored tokens."""
        self._places = self._places[kept]
        for stored in (part for parts in self._held for part in parts):
            # `index_select` copies, so source and target may overlap.
            stored[:, :, : len(kept)] = stored.index_select(2, kept.to(stored.device))

    def _show(self, new: list[Stored], own: Int[Tensor, " new"]) -> list[Stored]:
        """What the tokens of a piece see among them; afterwards what the last of them leaves is stored."""
        piece = self.piece
        assert piece is not None
        self._shown = torch.cat([self._places[piece.kept], own])
        shown = new
        if self._held:
            pairs = [zip(old, parts, strict=True) for old, parts in zip(self._held, new, strict=True)]
            shown = [
                tuple(torch.cat([stored.index_select(2, piece.kept.to(part.device)), part], 2) for stored, part in pair)
                for pair in pairs
            ]
        left = piece.left
        self._places = self._shown[left]
        self._store([tuple(part.index_select(2, left.to(part.device)) for part in parts) for parts in shown], 0)
        return shown

    def _store(self, new: list[Stored], start: int) -> None:
        """Append new tokens to the stored ones; a stream allocates its cells in the first pass."""
        count = new[0][0].shape[2]
        if not self._held:
            rows = count if self.cells is None else max(self.cells, count)
            self._held = [tuple(allocated(p, (*p.shape[:2], rows, p.shape[3])).zero_() for p in parts) for parts in new]
        elif self.cells is None:
            grown = [zip(old, parts, strict=True) for old, parts in zip(self._held, new, strict=True)]
            self._held = [tuple(torch.cat([old[:, :, :start], part], 2) for old, part in pairs) for pairs in grown]
            return
        for parts, states in zip(self._held, new, strict=True):
            for stored, part in zip(parts, states, strict=True):
                stored[:, :, start : start + count] = part

    def reset(self) -> None:
        self._held, self._seen = [], 0
        self._places = self._shown = torch.empty(0, dtype=torch.long)
        self._stays = self.piece = None
        self.coming, self.is_initialized = None, False

    def state(self) -> dict[str, Any]:
        raise InputError("an engine's cache is for comparisons and cannot be saved")

    def reorder_cache(self, beam_idx: Tensor) -> None:
        raise InputError("an engine's cache is for comparisons and does not support beam search")

    def batch_select_indices(self, indices: Tensor) -> None:
        raise InputError("an engine's cache is for comparisons: its rows cannot be chosen or repeated")

    def batch_repeat_interleave(self, repeats: int) -> None:
        raise InputError("an engine's cache is for comparisons: its rows cannot be chosen or repeated")

    def offload(self) -> None:
        raise InputError("an engine's cache stays on the device of its layer and cannot be offloaded")

    prefetch = offload


def encode(x: Float[Tensor, "batch heads token dim"], numbers: Rotated | RowFormat | None) -> Stored:
    """What is stored of keys or values. Raises `UnsupportedModelError` for a width that the format cannot store."""
    if numbers is None:
        return (x,)
    row, width = inner_of(numbers), x.shape[-1]
    assert isinstance(row, RowFormat)
    if width % row.block:
        raise UnsupportedModelError(f"heads of {width} channels: {row.name} needs a multiple of {row.block}")
    turn = rotation_of(numbers, width)
    return row.encode(x if turn is None else turn(x.float()))


def decode(stored: Stored, numbers: Rotated | RowFormat | None, width: int, dtype: torch.dtype) -> Tensor:
    """The keys or values that attention sees of what `encode` stored."""
    if numbers is None:
        return stored[0]
    row, turn = inner_of(numbers), rotation_of(numbers, width)
    assert isinstance(row, RowFormat)
    decoded = row.decode(stored, width)
    # The Hadamard rotation is its own inverse.
    return (decoded if turn is None else turn(decoded)).to(dtype)
