"""How much attention tokens and slots receive (Gu et al. 2025, section 3 and Table 4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkscope.errors import InputError, check_whole
from sinkscope.measurement.calls.call import AttentionCall
from sinkscope.measurement.calls.chunks import Chunk
from sinkscope.measurement.metrics import check_epsilon
from sinkscope.measurement.observers.observer import (
    Array,
    LayerSums,
    Observer,
    Piece,
    WeightsObserver,
    divide,
    in_every,
)
from sinkscope.measurement.observers.rows import sorted_positions


@in_every
@dataclass(frozen=True)
class AttentionReceived(Observer):
    """alpha_k = Σ_t A[t, k] / (number of real queries t that see k): `attention_received`.

    `positions`: "all", "first:8", or real positions such as [0, 3]. Cost: n positions of a softmax whose kernel gives
    its log-sum-exp take O(T · n) time; all positions, other kernels and operations without a softmax take one pass over
    the scores in chunks, O(T²) time; memory is always O(T). Raises `InputError` for invalid positions. Source: Gu et
    al. 2025, section 3, where the denominator is T − k: the same in plain causal layers, but not under windows, packed
    documents or prefixes (`denominator="paper"` of a measurement's rates gives theirs). Only observed queries count:
    with a prefix cached before observation began, only later queries. Sparse attention: an index that selects keys
    writes its choice into the mask, so alpha_k is the mean over the queries that selected k, and NaN for a key that
    none did.
    """

    positions: str | Sequence[int] = "all"

    def __post_init__(self) -> None:
        object.__setattr__(self, "positions", _parsed(self.positions))

    @property
    def chosen(self) -> tuple[int, ...] | None:
        """The positions as numbers; None for all."""
        positions = self.positions
        if positions == "all":
            return None
        return tuple(range(int(positions[6:]))) if isinstance(positions, str) else tuple(positions)

    @property
    def reads_weights_alone(self) -> bool:
        return True

    def reads_chunks(self, call: AttentionCall) -> bool:
        return self.chosen is None or not call.is_softmax

    def on_chunk(self, call: AttentionCall, chunk: Chunk) -> Iterable[Piece]:
        if self.chosen is None:
            start = call.key_start + chunk.columns.start
            yield Piece("attention", chunk.weights.sum(-2), start, chunk.samples)
            return
        columns, present = call.locate(self.chosen)
        received = chunk.weights.sum(-2)
        # Weights that are no softmax come in chunks of all columns, so columns of the call are columns of the chunk.
        index = columns[chunk.samples, None, :].expand(-1, received.shape[1], -1)
        yield Piece("attention", received.gather(-1, index) * present[chunk.samples, None, :], None, chunk.samples)

    def on_call(self, call: AttentionCall) -> Iterable[Piece]:
        if self.reads_chunks(call) or self.chosen is None:
            return
        columns, present = call.locate(self.chosen)
        for samples, rows in call.parts(len(self.chosen)):
            weights = call.weights(samples, rows, columns[samples])
            yield Piece("attention", weights.sum(-2) * present[samples, None, :], None, samples)

    def arrays(self, layer: LayerSums) -> dict[str, Array]:
        if (sums := layer.sums.get("attention")) is None:
            return {}
        counts = layer.visible_queries
        if self.chosen is None:
            return {"attention_received": Array(divide(sums, counts), "key")}
        chosen = None if counts is None else _at(counts, layer.keys, self.chosen)
        return {"attention_received": Array(divide(sums, chosen), self.chosen)}


@dataclass(frozen=True)
class QueriesAbove(WeightsObserver):
    """The share of the real queries that see key k with A[t, k] > threshold: `queries_above`.

    (sample, layer, head, position), from 0 to 1, over the same queries as alpha_k. It tells whether every query gives a
    little or a few give everything, which a mean hides. Only on request ("all" leaves it out). Cost: the pass over all
    weights in chunks. Raises `InputError` for a threshold outside (0, 1).
    """

    threshold: float = 0.3

    def __post_init__(self) -> None:
        check_epsilon(self.threshold)

    def on_chunk(self, call: AttentionCall, chunk: Chunk) -> Iterable[Piece]:
        above = (chunk.weights > self.threshold).sum(-2, dtype=torch.float32)
        yield Piece("above", above, call.key_start + chunk.columns.start, chunk.samples)

    def arrays(self, layer: LayerSums) -> dict[str, Array]:
        if (sums := layer.sums.get("above")) is None:
            return {}
        return {"queries_above": Array(divide(sums, layer.visible_queries), "key")}


@dataclass(frozen=True)
class GivenTo(WeightsObserver):
    """A[t, k] for the real token k = `to`: `given_to`.

    (sample, layer, head, position), the position being the query's; 0 for queries that do not see it. Only when asked
    for ("all" leaves it out). Cost: the pass over all weights in chunks. Raises `InputError` for a negative position.
    """

    to: int = 0

    def __post_init__(self) -> None:
        check_whole("to", self.to, 0)

    def on_chunk(self, call: AttentionCall, chunk: Chunk) -> Iterable[Piece]:
        columns, present = call.locate((self.to,))
        keys = torch.arange(chunk.columns.start, chunk.columns.stop, device=chunk.weights.device)
        here = (keys == columns[chunk.samples]) & present[chunk.samples]
        mass = (chunk.weights * here[:, None, None, :]).sum(-1)
        yield Piece("given", mass, call.query_start + chunk.rows.start, chunk.samples)

    def arrays(self, layer: LayerSums) -> dict[str, Array]:
        return {"given_to": Array(layer.sums["given"], "query")} if "given" in layer.sums else {}


@in_every
@dataclass(frozen=True)
class SlotReceived(Observer):
    """Mean over a row's real queries of the weight on slots, summed over slots: `slot_received`.

    Slots are what a query may attend to besides tokens: key biases and sink logits of lab operations, learned sinks
    (`s_aux`) of hub models, with weight 1 − Σ_k A = sigmoid(s − lse). Absent if no layer has one. Cost: O(T) with a
    log-sum-exp, else the pass in chunks.
    """

    def reads_chunks(self, call: AttentionCall) -> bool:
        return not call.is_softmax and call.operation is not None and call.operation.slots > 0

    def on_chunk(self, call: AttentionCall, chunk: Chunk) -> Iterable[Piece]:
        if chunk.slots is not None:
            yield Piece("slot", chunk.slots.sum((-2, -1)), None, chunk.samples)

    def on_call(self, call: AttentionCall) -> Iterable[Piece]:
        if call.is_softmax and call.sink is not None:
            # (batch | 1, heads, query | 1) − (batch, heads, query); +inf in rows that do not count makes their mass 0.
            mass = (call.sink - call.counted_lse).exp()
            yield Piece("slot", mass.sum(-1))

    def arrays(self, layer: LayerSums) -> dict[str, Array]:
        if (sums := layer.sums.get("slot")) is None:
            return {}
        return {"slot_received": Array(divide(sums, layer.query_count[:, None]), None)}


@in_every
@dataclass(frozen=True)
class EntriesReceived(Observer):
    """Mean over a row's real queries of the weight on each key that is not a token: `entry_received`.

    (sample, layer, head, entry): Σ_t A[t, e] / T, in the order of the keys; a query that does not see an entry gives 0.
    Examples are the compressed keys of DeepSeek-V4, or an encoder's states in a decoder that reads them in the softmax
    over its own tokens (T5Gemma 2). With `attention_received` · `visible_queries` / T over tokens and `slot_received`
    they sum to one. Absent if no layer has any. Cost: O(T · entries).
    """

    def on_call(self, call: AttentionCall) -> Iterable[Piece]:
        if call.entries is None:
            return
        lse = call.counted_lse[..., None]
        for samples, rows in call.parts(call.entries.key.shape[2]):
            weights = call.entry_scores(samples, rows).sub_(lse[samples, :, rows]).exp_()
            yield Piece("entry", weights.sum(-2), 0, samples)

    def arrays(self, layer: LayerSums) -> dict[str, Array]:
        if (sums := layer.sums.get("entry")) is None:
            return {}
        return {"entry_received": Array(divide(sums, layer.query_count[:, None, None]), None, ("entry",))}


def _parsed(positions: str | Sequence[int]) -> str | tuple[int, ...]:
    expected = "'all', 'first:8', or a list of numbers such as [0, 3]"
    if not isinstance(positions, str):
        return sorted_positions(positions, expected)
    head, _, count = positions.partition(":")
    if positions != "all" and not (head == "first" and count.isdigit() and int(count) > 0):
        raise InputError(f"positions = {positions!r}: expected {expected}")
    return positions


def _at(
    counts: Float[Tensor, "batch heads key"], real: Bool[Tensor, "batch key"], positions: tuple[int, ...]
) -> Float[Tensor, "batch heads chosen"]:
    """Counts at each row's p-th real token; 0 if the row is shorter."""
    order = torch.argsort((~real).int(), dim=-1, stable=True)
    wanted = torch.tensor(positions, device=counts.device).expand(len(counts), -1)
    index = order.gather(1, wanted.clamp(max=order.shape[1] - 1))
    picked = counts.gather(2, index[:, None].expand(-1, counts.shape[1], -1))
    return picked.where((wanted < real.sum(-1, keepdim=True))[:, None], 0)
