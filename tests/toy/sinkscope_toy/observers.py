"""An observer: how much tokens attend to the one before."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import sinkscope as ss
from sinkscope.measurement import Array, Observer, Piece, divide


@ss.observer
@dataclass(frozen=True)
class ToyPrevious(Observer):
    """mean_t A[t, t − 1] over real queries: `toy_previous` (sample, layer, head). Cost: the pass in chunks."""

    def reads_chunks(self, call):
        return call.layer.stack != "cross"

    def on_chunk(self, call, chunk):
        queries = torch.arange(chunk.rows.start, chunk.rows.stop, device=chunk.weights.device) + call.query_start
        keys = torch.arange(chunk.columns.start, chunk.columns.stop, device=queries.device) + call.key_start
        before = chunk.weights * (queries[:, None] == keys + 1)
        yield Piece("before", before.sum((-2, -1)), None, chunk.samples)

    def arrays(self, found):
        if "before" not in found.sums:
            return {}
        return {"toy_previous": Array(divide(found.sums["before"], found.query_count[:, None]), None)}
