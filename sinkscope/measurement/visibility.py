"""How many queries see each key, what uniform attention would give it, and whether anything is seen ahead of its time.

Read from the masks of attention calls, whatever is observed. Rules cost O(T), written masks O(T²) once a pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from sinkscope.measurement.calls.call import AttentionCall
from sinkscope.measurement.calls.masks import KINDS, Bound, Rule, VisibleKeys

Sums = Float[Tensor, "#batch heads key"]


@dataclass(frozen=True, eq=False)
class Seen:
    """Σ_t [t sees k] and Σ_t [t sees k] / n_t over the real queries t of a call, n_t the number of keys that t sees.

    Slots are left out. Masks alone tell: keys that an index of sparse attention did not select are hidden, since the
    layer's mask says so; a weight of 0 hides nothing. One head stands for all where the mask is the same in all heads.
    `ahead`: whether a query sees a key that comes after it.
    """

    queries: Sums
    uniform: Sums
    ahead: bool


@dataclass
class SeenKeys:
    """What the calls of one pass show. Layers share their masks, which are read once."""

    _known: dict[tuple[int, str, int], tuple[object, Seen]] = field(default_factory=dict)

    def of(self, call: AttentionCall, shared: bool) -> Seen:
        """`shared`: whether the keys are the queries' own tokens; where they are not, all of them count as ahead."""
        if isinstance(call.mask, Rule):
            return _of_rule(call, call.mask, shared)
        source: object = call.mask.visibility if isinstance(call.mask, Bound) else call.mask
        place = (id(source), call.layer.stack, call.query_start)
        if place not in self._known:
            while len(self._known) >= KINDS:
                self._known.pop(next(iter(self._known)))
            self._known[place] = source, _of_mask(call, call.mask, shared)
        return self._known[place][1]


def _of_rule(call: AttentionCall, mask: Rule, shared: bool) -> Seen:
    place = torch.arange(call.query.shape[2], device=call.query.device)[None] + mask.start
    first = torch.zeros_like(place) if mask.window is None else place - mask.window + 1
    stop = place + 1 if mask.causal else torch.full_like(place, mask.keys)
    if mask.window is not None and not mask.causal:
        stop = place + mask.window
    return _of_spans(call, first, stop, mask.padding, shared)


def _of_mask(call: AttentionCall, mask: VisibleKeys, shared: bool) -> Seen:
    if isinstance(mask, Bound):
        visibility = mask.visibility
        spans = visibility.spans
        if spans is not None and visibility.mask.solid(visibility.query, visibility.key):
            return _of_spans(call, *spans, visibility.key.valid, shared)
    return _sum(call, _parts(call, mask), shared)


def _parts(call: AttentionCall, mask: VisibleKeys) -> Iterator[tuple[slice, slice, slice, Tensor]]:
    for samples, rows in call.parts():
        columns = mask.extent(samples, rows)
        yield samples, rows, columns, mask.visible(samples, rows, columns).to(call.query.device)


def _of_spans(
    call: AttentionCall,
    first: Int[Tensor, "#batch query"],
    stop: Int[Tensor, "#batch query"],
    padding: Bool[Tensor, "#batch key"] | None,
    shared: bool,
) -> Seen:
    """Where queries see all keys from `first` to before `stop` but padding: sums of differences, O(T)."""
    device, keys = call.query.device, call.mask.keys
    first, stop = first.to(device).clamp(0, keys), stop.to(device).clamp(0, keys)
    real = torch.ones(1, keys, dtype=torch.bool, device=device) if padding is None else padding.to(device)
    before = functional.pad(real.long().cumsum(-1), (1, 0))
    rows = max(len(first), len(before), 1 if call.real is None else len(call.real))
    first, stop, before = (each.expand(rows, -1) for each in (first, stop, before))
    counts = before.gather(1, stop) - before.gather(1, first)
    counted = counts > 0 if call.real is None else (counts > 0) & call.real
    sums = []
    for values in (counted.double(), counted / counts.clamp(min=1).double()):
        edges = values.new_zeros(rows, keys + 1).scatter_add(1, first, values).scatter_add_(1, stop, -values)
        sums.append((edges.cumsum(-1)[:, :keys] * real).float()[:, None])
    if shared and isinstance(call.mask, Rule) and call.mask.causal:
        return Seen(sums[0], sums[1], False)
    later = (_place(call) + 1).clamp(max=keys).expand(rows, -1)
    ahead = not shared or bool(((before.gather(1, stop) > before.gather(1, later)) & counted).any())
    return Seen(sums[0], sums[1], ahead)


def _sum(call: AttentionCall, parts: Iterator[tuple[slice, slice, slice, Tensor]], shared: bool) -> Seen:
    queries = uniform = None
    ahead, place = not shared, _place(call)[0]
    for samples, rows, columns, part in parts:
        visible = part if call.real is None else part & call.real[samples, None, rows, None]
        counts = visible.sum(-1, keepdim=True).clamp(min=1)
        if queries is None or uniform is None:
            size = len(call.query), visible.shape[1], call.mask.keys
            queries, uniform = (torch.zeros(size, dtype=torch.float64, device=visible.device) for _ in range(2))
        queries[samples, :, columns] += visible.sum(-2)
        uniform[samples, :, columns] += (visible / counts.double()).sum(-2)
        if not ahead:
            index = torch.arange(columns.start, columns.stop, device=visible.device)
            ahead = bool((visible & (index > place[rows, None])).any())
    assert queries is not None
    assert uniform is not None
    return Seen(queries.float(), uniform.float(), ahead)


def _place(call: AttentionCall) -> Int[Tensor, "1 query"]:
    """Where each query stands among the keys of a self-attention call."""
    start = call.query_start - call.key_start
    return torch.arange(start, start + call.query.shape[2], device=call.query.device)[None]
