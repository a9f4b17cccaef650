"""The keys that generated queries attend to most, head by head, as `generate()` runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.errors import check_whole
from sinkscope.measurement.calls.call import AttentionCall
from sinkscope.measurement.calls.chunks import Chunk
from sinkscope.measurement.observers.observer import Array, LayerSums, Observer, Piece

PARTS = ("attention", "position", "value_norm")


@dataclass(frozen=True)
class StrongestKeys(Observer):
    """After each generated token, the `count` keys of each head that generated queries gave most on average.

    α_k = Σ_t A[t, k] / how many of these t are at or after k, over the queries t of generated tokens so far: those of
    passes of one token that continue a cache. `strongest_attention`, `strongest_position` and `strongest_value_norm`
    (‖v_k‖₂): (sample, layer, head, position, strongest), the position being the query's; NaN at all others, and where
    there are fewer keys. Only when asked for ("all" leaves it out), under `observe` around `generate()`:
    `Measurement.features` reads it. Cost: O(T) time and memory a token and head, no maps. A key that the cache has
    evicted, or that has left the window, receives nothing from later queries, and its value has the norm that it had
    in the cache; NaN if it was gone before the observation began. Raises `InputError` for a count below 1. Features of
    sinks for probes: SinkProbe, from prompts.
    """

    count: int = 8
    _sums: dict[tuple[str, int], Float[Tensor, "batch heads key"]] = field(default_factory=dict, repr=False)
    _first: dict[tuple[str, int], int] = field(default_factory=dict, repr=False)
    _norms: dict[tuple[str, int], Float[Tensor, "batch kv_heads key"]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        check_whole("count", self.count)

    @property
    def coordinates(self) -> Mapping[str, range]:
        return {"strongest": range(self.count)}

    def bound(self, model: nn.Module) -> StrongestKeys:
        """This observer with sums of its own, so that two observations do not share them."""
        return replace(self, _sums={}, _first={}, _norms={})

    def reads_chunks(self, call: AttentionCall) -> bool:
        return call.query.shape[2] == 1 and call.query_start > 0

    def on_call(self, call: AttentionCall) -> Iterable[Piece]:
        if call.query_start == 0:  # a prompt: what earlier rows summed up is done with
            for kept in (self._sums, self._first, self._norms):
                for place in [place for place in kept if place[0] == call.layer.name]:
                    del kept[place]
        self._keep_norms(call)
        return ()

    def on_chunk(self, call: AttentionCall, chunk: Chunk) -> Iterable[Piece]:
        # Sums of the whole batch: with more keys, later calls cut its samples into other chunks.
        place = (call.layer.name, call.samples_before)
        total = call.key_start + call.key.shape[2]
        weights = chunk.weights[:, :, 0]
        known = self._sums.get(place, weights.new_zeros(len(call.query), weights.shape[1], 0))
        if known.shape[-1] < total:
            known = self._sums[place] = torch.nn.functional.pad(known, (0, total - known.shape[-1]))
        sums = known[chunk.samples]  # a view
        sums[..., call.key_start + chunk.columns.start : call.key_start + chunk.columns.stop] += weights
        first = self._first.setdefault(place, call.query_start)
        # Queries first … query_start: key k is at or before all of them, or begins among them.
        keys = torch.arange(total, device=sums.device)
        means = sums / (call.query_start - keys.clamp(min=first) + 1)
        if call.real_keys is not None:
            real = call.real_keys[chunk.samples, :total].to(means.device)
            means = means.masked_fill(~real[:, None], -torch.inf)
        largest = means.topk(min(self.count, total), -1)
        for name, values in self._values(call, chunk, largest.values, largest.indices).items():
            missing = self.count - values.shape[-1]
            # Padding is the weakest of all, and no key.
            known_keys = values.float().masked_fill(largest.values.isneginf(), torch.nan)
            padded = torch.nn.functional.pad(known_keys, (0, missing), value=torch.nan)
            yield Piece(name, padded[:, :, None], call.query_start, chunk.samples)
        yield Piece("generated", weights.new_ones((*weights.shape[:2], 1)), call.query_start, chunk.samples)

    def arrays(self, layer: LayerSums) -> dict[str, Array]:
        if "generated" not in layer.sums:
            return {}
        there = layer.sums["generated"][..., None] > 0
        return {
            f"strongest_{name}": Array(torch.where(there, layer.sums[name], torch.nan), "query", ("strongest",))
            for name in PARTS
        }

    def describe(self) -> dict[str, Any]:
        return {"name": type(self).__name__, "count": self.count}

    def _keep_norms(self, call: AttentionCall) -> None:
        """Keep ‖v_k‖ of each key as it is first seen: later its place may be zeros, or another key's."""
        place, here = (call.layer.name, call.samples_before), call.value_lengths
        known = self._norms.get(place, here.new_zeros(*here.shape[:2], 0))
        grown = call.key_start + here.shape[-1] - known.shape[-1]
        known = self._norms[place] = torch.nn.functional.pad(known, (0, max(grown, 0)), value=torch.nan)
        there = here > 0
        there[..., call.own_keys] = True
        columns = known[..., call.key_start :]
        columns.copy_(torch.where(columns.isnan() & there, here, columns))

    def _values(self, call: AttentionCall, chunk: Chunk, means: Tensor, columns: Tensor) -> dict[str, Tensor]:
        """The means, the positions among real tokens, and the norms of the values."""
        norms = self._norms[call.layer.name, call.samples_before][chunk.samples].repeat_interleave(call.group, 1)
        places = columns  # columns count padding as well
        if call.real_keys is not None:
            order = call.real_keys[chunk.samples, : call.key_start + call.key.shape[2]].long().cumsum(-1) - 1
            places = order.to(columns.device)[:, None].expand(-1, columns.shape[1], -1).gather(2, columns)
        return dict(zip(PARTS, (means, places, norms.gather(2, columns)), strict=True))
