"""Attention received as the text grows: the paper's sweep over T, from one pass (Gu et al. 2025, section 3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinkscope.errors import InputError, check_whole, is_whole
from sinkscope.measurement.calls.call import AttentionCall
from sinkscope.measurement.calls.chunks import Chunk
from sinkscope.measurement.observers.observer import Array, LayerSums, Observer, Piece, divide, in_every

LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


@in_every
@dataclass(frozen=True)
class ReceivedByLength(Observer):
    """alpha_k(T') = Σ_{k ≤ t < T'} A[t, k] / how many of these t see k, for the T' in `lengths`:
    `attention_received_by_length`; the share of these t that see k: `visible_share_by_length` (sample, layer, length).

    (sample, layer, head, length): what position k (`position`, a real token) received when only the first T' tokens
    existed. Exact in causal layers, where later tokens change nothing before them (unless a rotation or prefix mask
    depends on the whole text). NaN for texts shorter than T' and in bidirectional layers; absent if all layers are
    bidirectional. Cost: O(T) for a softmax given its log-sum-exp; other operations are read in the chunks of all
    weights. Raises `InputError` for lengths that are not positive numbers. Source: Gu et al. 2025, Fig. 3.
    """

    lengths: Sequence[int] = LENGTHS
    position: int = 0

    def __post_init__(self) -> None:
        lengths = tuple(self.lengths) if isinstance(self.lengths, Iterable) else ()
        if not lengths or not all(is_whole(length, 1) for length in lengths):
            raise InputError(f"lengths = {self.lengths!r}: expected numbers of tokens such as [64, 128]")
        check_whole("position", self.position, 0)
        object.__setattr__(self, "lengths", tuple(sorted(set(lengths))))

    @property
    def coordinates(self) -> Mapping[str, Sequence[int | float | str]]:
        return {"length": self.lengths}

    @property
    def reads_weights_alone(self) -> bool:
        return True

    def reads_chunks(self, call: AttentionCall) -> bool:
        return call.causal and not call.is_softmax

    def on_chunk(self, call: AttentionCall, chunk: Chunk) -> Iterable[Piece]:
        columns, present = call.locate((self.position,))
        index = columns[chunk.samples, None, None, :].expand(*chunk.weights.shape[:3], 1)
        weights = chunk.weights.gather(-1, index) * present[chunk.samples, None, None, :]
        yield self._sums(call, "received", weights[..., 0], chunk.samples, chunk.rows)
        yield from self._queries(call, columns, present, chunk.samples, chunk.rows)

    def on_call(self, call: AttentionCall) -> Iterable[Piece]:
        if not call.causal or not call.is_softmax:
            return
        columns, present = call.locate((self.position,))
        for samples, rows in call.parts(1):
            weights = call.weights(samples, rows, columns[samples])
            weights = weights * present[samples, None, None, :]
            yield self._sums(call, "received", weights[..., 0], samples, rows)
            yield from self._queries(call, columns, present, samples, rows)

    def arrays(self, layer: LayerSums) -> dict[str, Array]:
        if (sums := layer.sums.get("received")) is None:
            return {}
        long_enough = layer.queries.sum(-1, keepdim=True) >= torch.tensor(self.lengths)
        counts = layer.sums["seen"].where(long_enough[:, None], 0)
        after = (torch.tensor(self.lengths) - self.position).clamp(min=0).to(counts).where(counts > 0, 0)  # T' − k
        return {
            "attention_received_by_length": Array(divide(sums, counts), None, ("length",)),
            "visible_share_by_length": Array(divide(counts, after), None, ("length",), per_head=False),
        }

    def _queries(
        self, call: AttentionCall, columns: Tensor, present: Tensor, samples: slice, rows: slice
    ) -> Iterable[Piece]:
        """How many of these queries see the position."""
        seen = call.mask.visible(samples, rows, columns[samples]).to(columns.device) & present[samples, None, None, :]
        if call.real is not None:
            seen = seen & call.real[samples, None, rows, None]
        yield self._sums(call, "seen", seen[..., 0].float(), samples, rows)

    def _sums(
        self, call: AttentionCall, name: str, weights: Float[Tensor, "batch heads query"], samples: slice, rows: slice
    ) -> Piece:
        """Σ of one column over the queries among the first T' real tokens, for every T'."""
        lengths = torch.tensor(self.lengths, device=weights.device)
        # (batch, heads, query) @ (batch, query, length): each column of `inside` picks the queries below one T'.
        inside = _real_positions(call)[samples, rows, None] < lengths
        return Piece(name, weights @ inside.expand(len(weights), -1, -1).to(weights.dtype), None, samples)


def _real_positions(call: AttentionCall) -> Int[Tensor, "batch query"]:
    """The position of each query of a self-attention call among the real tokens of its row."""
    columns = slice(call.query_start, call.query_start + call.query.shape[2])
    if call.real_keys is None:
        return torch.arange(columns.start, columns.stop, device=call.query.device).expand(len(call.query), -1)
    return call.real_keys.cumsum(1)[:, columns] - 1
