"""Attention maps of a few tokens, for people to look at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sinkscope.errors import InputError
from sinkscope.probes.calls.call import AttentionCall
from sinkscope.probes.calls.chunks import Chunk
from sinkscope.probes.observers.observer import Array, LayerSums, Observer, Piece


@dataclass(frozen=True)
class AttentionMaps(Observer):
    """A[t, k] among the first `tokens` tokens of the first sample: `attention_map` (kept, layer, head, query, key).

    The weights that the metrics read; padding counts as a token here. The one observer whose result grows with the
    square of its tokens: hence few of them, one sample, and only when asked for ("all" leaves it out). Cost: the pass
    over all weights in chunks.
    """

    tokens: int = 64

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise InputError(f"attention maps of {self.tokens} tokens: at least 1")

    @property
    def reads_weights_alone(self) -> bool:
        return True

    def reads_chunks(self, call: AttentionCall) -> bool:
        return call.samples_before == 0 and call.query_start < self.tokens

    def on_chunk(self, call: AttentionCall, chunk: Chunk) -> Iterable[Piece]:
        first, start = call.query_start + chunk.rows.start, call.key_start + chunk.columns.start
        if chunk.samples.start or first >= self.tokens:
            return
        rows = chunk.weights[:1, :, : self.tokens - first, : max(0, self.tokens - start)]
        shown = rows.new_zeros(*rows.shape[:-1], self.tokens)
        shown[..., start : start + rows.shape[-1]] = rows
        yield Piece("map", shown, first, slice(0, 1))

    def arrays(self, found: LayerSums) -> dict[str, Array]:
        if "map" not in found.sums:
            return {}
        keys = min(self.tokens, found.keys.shape[1])
        return {"attention_map": Array(found.sums["map"][..., :keys], None, ("query", "key"), kept=1)}
