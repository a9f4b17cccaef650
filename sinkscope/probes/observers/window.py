"""How much of a query's attention its first and its last tokens hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from sinkscope.errors import InputError
from sinkscope.probes.calls.call import AttentionCall
from sinkscope.probes.calls.chunks import Chunk
from sinkscope.probes.observers.observer import Array, LayerSums, Observer, Piece


@dataclass(frozen=True)
class WindowMass(Observer):
    """Σ A[t, k] over the first `sinks` real tokens and the last `recent` before t, t among them: `window_mass`.

    (sample, layer, head, position), the position being the query's. What a head would lose of each query if it kept
    sinks and a window alone; a head that retrieves once in a while shows in a low quantile, not in the mean. Only when
    asked for ("all" leaves it out). Cost: the pass over all weights in chunks. Raises `InputError` for negative sizes.
    """

    sinks: int = 4
    recent: int = 64

    def __post_init__(self) -> None:
        if self.sinks < 0 or self.recent < 1:
            raise InputError(f"{self.sinks} sinks and {self.recent} recent tokens: at least 0 and 1")

    @property
    def reads_weights_alone(self) -> bool:
        return True

    def reads_chunks(self, call: AttentionCall) -> bool:
        return call.layer.stack == "decoder"

    def on_chunk(self, call: AttentionCall, chunk: Chunk) -> Iterable[Piece]:
        device = chunk.weights.device
        queries = torch.arange(chunk.rows.start, chunk.rows.stop, device=device) + call.query_start
        keys = torch.arange(chunk.columns.start, chunk.columns.stop, device=device) + call.key_start
        first = (keys < self.sinks)[None, None]
        if call.real_keys is not None:
            real = call.real_keys[chunk.samples].to(device)
            first = ((real.cumsum(-1) <= self.sinks) & real)[:, None, keys]
        near = (queries[:, None] - keys < self.recent) & (keys <= queries[:, None])
        mass = (chunk.weights * (first[:, :, None] | near)).sum(-1)
        yield Piece("window", mass, call.query_start + chunk.rows.start, chunk.samples)

    def arrays(self, found: LayerSums) -> dict[str, Array]:
        return {"window_mass": Array(found.sums["window"], "query")} if "window" in found.sums else {}
