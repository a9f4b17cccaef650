"""Raw data of a few samples: attention maps, and the keys of a few tokens for the manifold.

Source: Gu et al. 2025, section 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from sinkscope.errors import check_whole
from sinkscope.measurement.calls.call import AttentionCall
from sinkscope.measurement.calls.chunks import Chunk
from sinkscope.measurement.observers.observer import Array, LayerSums, Observer, Piece, WeightsObserver, in_every
from sinkscope.measurement.observers.rows import sorted_positions


@dataclass(frozen=True)
class AttentionMaps(WeightsObserver):
    """A[t, k] among the first `tokens` tokens of the first sample: `attention_map` (kept, layer, head, query, key).

    The weights that the metrics read; padding counts as a token here. The only observer whose result grows with the
    square of its tokens: hence few tokens, one sample, and only on request ("all" leaves it out). Cost: the pass over
    all weights in chunks.
    """

    tokens: int = 64

    def __post_init__(self) -> None:
        check_whole("tokens", self.tokens)

    def reads_chunks(self, call: AttentionCall) -> bool:
        return call.samples_before == 0 and call.query_start < self.tokens

    def on_chunk(self, call: AttentionCall, chunk: Chunk) -> Iterable[Piece]:
        first, start = call.query_start + chunk.rows.start, call.key_start + chunk.columns.start
        if chunk.samples.start or first >= self.tokens:
            return
        rows = chunk.weights[:1, :, : self.tokens - first, : max(0, self.tokens - start)]
        # A copy, since the next chunk may reuse this memory; keys outside the chunk's columns have weight 0.
        shown = rows.new_zeros(*rows.shape[:-1], self.tokens)
        shown[..., start : start + rows.shape[-1]] = rows
        yield Piece("map", shown, first, slice(0, 1))

    def arrays(self, layer: LayerSums) -> dict[str, Array]:
        if "map" not in layer.sums:
            return {}
        keys = min(self.tokens, layer.keys.shape[1])
        return {"attention_map": Array(layer.sums["map"][..., :keys], None, ("query", "key"), kept=1)}


POSITIONS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


@in_every
@dataclass(frozen=True)
class KeyVectors(Observer):
    """Keys after rotation at real `positions` of the first `kept` samples: `key_vectors`.

    (kept, layer, head, kept_position, key_dim), keys repeated over their group so that `head` is always the query head;
    NaN if a row is shorter, and for tokens cached before observation. Cost: a copy; memory O(kept · positions). Raises
    `InputError` for invalid positions or numbers of samples.
    """

    kept: int = 4
    positions: Sequence[int] = POSITIONS

    def __post_init__(self) -> None:
        check_whole("kept", self.kept)
        object.__setattr__(self, "positions", sorted_positions(self.positions))

    @property
    def coordinates(self) -> Mapping[str, Sequence[int | float | str]]:
        return {"kept_position": self.positions}

    def on_call(self, call: AttentionCall) -> Iterable[Piece]:
        rows = slice(0, min(len(call.query), self.kept - call.samples_before))
        if rows.stop <= 0:
            return
        columns, present = call.locate(self.positions)
        # A key is taken in the call in which it is new: later calls get it from the cache again.
        in_call = present & (columns >= call.own_keys.start) & (columns < call.own_keys.stop)
        index = columns[rows, None, :, None].expand(-1, call.key.shape[1], -1, call.key.shape[-1])
        shown = in_call[rows, None, :, None]
        keys = call.key[rows].gather(2, index).float().masked_fill(~shown, 0.0)
        yield Piece("keys", keys.repeat_interleave(call.group, 1), None, rows)
        yield Piece("shown", shown.float(), None, rows)

    def arrays(self, layer: LayerSums) -> dict[str, Array]:
        if "keys" not in layer.sums:
            return {}
        counts = layer.sums["shown"]
        keys = torch.where(counts > 0, layer.sums["keys"] / counts.clamp(min=1), torch.nan)
        return {"key_vectors": Array(keys, None, ("kept_position", "key_dim"), kept=self.kept)}
