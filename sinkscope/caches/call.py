"""What a policy sees of one pass through an attention layer: its queries, all stored keys, and the tokens they belong
to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from sinkscope.attention.scores import wide
from sinkscope.caches.rotation import Rotation

ELEMENTS = 2**21  # attention weights in memory at a time
ROWS = 64  # queries per chunk at most


@dataclass(frozen=True, eq=False)
class EvictionCall:
    """Queries, keys and values as a layer's attention function received them, after rotation and cache.

    `key` and `value` hold what is stored, this pass's tokens included (`of_new` selects those). They may have more
    heads than the cache (`cache_heads`) where the cache holds a latent that all heads share. `places`: the column of
    the whole sequence that each key came from, −1 for an empty slot. `total`: columns after this pass. `pads`: left
    padding of each row. `mask`: the attention function's mask, (batch, 1 or heads, query, key), boolean or additive;
    None if attention is causal by place. `budget`: keys that a head of this layer may keep on average, per row.
    `notes`: what the policy `needs`, keyed by note. `layer` counts the layers that evict, from 0. `ids`: the pass's
    token ids, if it was given any. `rotation`: how the layer rotates keys by position, if the policy asks for it. `at`:
    the slot of each head's new key, if it is not the last. `known`: the pass's attention weights, if they were already
    computed. `lowest`: every slot holds a key and exactly one key of each head will be evicted, the oldest of those
    with the lowest score, so the other scores only need to be higher.

    A decoded token of a policy that scores layers `together` makes one call for all of them: their samples follow each
    other in the batch, and `layer` and `module` are those of the first.
    """

    query: Float[Tensor, "batch heads query dim"]
    key: Float[Tensor, "batch kv_heads key dim"]
    value: Float[Tensor, "batch kv_heads key value_dim"]
    places: Int[Tensor, "batch kv_heads key"]
    total: int
    scaling: float
    cache_heads: int
    budget: Int[Tensor, " batch"]
    module: nn.Module
    layer: int = 0
    layers: int = 1
    pads: Int[Tensor, " batch"] | None = None
    mask: Tensor | None = None
    softcap: float | None = None
    sink: Float[Tensor, " heads"] | None = None
    ids: Int[Tensor, "batch query"] | None = None
    rotation: Rotation | None = None
    notes: Mapping[object, Tensor] = field(default_factory=dict)
    at: Int[Tensor, "batch kv_heads 1"] | None = None
    known: Float[Tensor, "batch kv_heads group query key"] | None = None
    lowest: bool = False

    @cached_property
    def real(self) -> Bool[Tensor, "batch kv_heads key"]:
        """False for padding and empty slots."""
        return self.places >= (0 if self.pads is None else self.pads[:, None, None].to(self.places.device))

    @property
    def group(self) -> int:
        """Query heads per key-value head."""
        return self.query.shape[1] // self.key.shape[1]

    @property
    def queries(self) -> int:
        return self.query.shape[2]

    def of_new(self, rows: Shaped[Tensor, "batch kv_heads key *_"]) -> Shaped[Tensor, "batch kv_heads query *_"]:
        """The rows of the keys that this pass added, from rows with one entry per key, such as `key`."""
        if self.at is None:
            return rows[:, :, rows.shape[2] - self.queries :]
        index = self.at.reshape(*self.at.shape, *(1,) * (rows.ndim - 3))
        return rows.gather(2, index.expand(-1, -1, -1, *rows.shape[3:]))

    @property
    def positions(self) -> Int[Tensor, "batch kv_heads key"]:
        """How many real tokens precede each key."""
        return self.places if self.pads is None else self.places - self.pads[:, None, None].to(self.places.device)

    @property
    def tokens(self) -> Int[Tensor, " batch"]:
        """Real tokens so far, per row."""
        whole = torch.full(self.query.shape[:1], self.total, device=self.query.device)
        return whole if self.pads is None else whole - self.pads.to(whole.device)

    def weights(self, rows: slice = slice(None)) -> Float[Tensor, "batch kv_heads group n key"]:
        """Attention weights of some of this pass's queries, fp32. Rows of padding are 0.

        softmax(softcap(q·k · scaling) + mask), with the layer's learned sink in the denominator if it has one.
        """
        if self.known is not None:
            return self.known[..., rows, :]
        columns = torch.arange(self.total - self.queries, self.total, device=self.query.device)[rows]
        scores = self._scores(self.query[:, :, rows])
        if self.mask is not None:
            mask = self.mask[:, :, rows, : self.key.shape[2]]
            # (batch, 1 or kv_heads, 1 or group, n, key)
            mask = mask[:, :, None] if mask.shape[1] == 1 else mask.unflatten(1, (-1, self.group))
            # Hosts hide keys with −inf or with about the dtype's minimum; both become a weight of exactly 0.
            hidden = ~mask if mask.dtype == torch.bool else mask <= torch.finfo(mask.dtype).min / 2
            scores = scores if mask.dtype == torch.bool else scores + mask
            scores = scores.masked_fill(hidden, -torch.inf)
        elif self.queries > 1:
            # One query without a mask sees every slot: `by_place` makes a mask if any is empty.
            scores = scores.masked_fill(~self._visible(columns), -torch.inf)
        return self._shares(scores, columns)

    def weights_of(
        self, query: Float[Tensor, "batch heads n dim"], columns: Int[Tensor, " n"]
    ) -> Float[Tensor, "batch kv_heads group n key"]:
        """Attention weights of any queries that ended the text: those in the last `columns`, each of which saw what
        preceded it.

        All of them see every key except the newest, so the mask is computed for those alone.
        """
        # A head holds a column at most once, so keys newer than any of n queries are among its n newest.
        scores, late = self._scores(query), min(len(columns), self.places.shape[2])
        newest = self.places.topk(late, -1)
        unseen = (newest.values[:, :, None] > columns[:, None])[:, :, None].expand(*scores.shape[:4], late)
        index = newest.indices[:, :, None, None].expand_as(unseen)
        scores.scatter_(-1, index, scores.gather(-1, index).masked_fill_(unseen, -torch.inf))
        if not self.lowest and not bool(self.real.all()):
            scores.masked_fill_(~self.real[:, :, None, None], -torch.inf)
        return self._shares(scores, columns)

    def sample(self, row: int) -> EvictionCall:
        """The call of one sample, without notes."""
        one = slice(row, row + 1)
        batched = ("query", "key", "value", "places", "budget", "pads", "ids", "at", "known")
        rows: dict[str, Any] = {
            name: None if (whole := getattr(self, name)) is None else whole[one] for name in batched
        }
        mask = self.mask if self.mask is None or len(self.mask) == 1 else self.mask[one]
        return replace(self, **rows, mask=mask, notes={})

    def row_parts(self) -> Iterator[slice]:
        """Slices of this pass's queries, small enough that their weights take about `ELEMENTS` at most."""
        per_row = self.query.shape[0] * self.query.shape[1] * self.key.shape[2]
        step = min(ROWS, max(1, ELEMENTS // per_row))
        for start in range(0, self.queries, step):
            yield slice(start, min(self.queries, start + step))

    def received(self, rows: slice = slice(None)) -> Float[Tensor, "batch kv_heads key"]:
        """The attention that keys receive from some of this pass's queries: the sum of weights, averaged over a head
        group.
        """
        weights = self.weights(rows)
        of_rows = (
            weights[..., 0, :] if weights.shape[-2] == 1 else weights.sum(-2)
        )  # one decoded token: nothing to add up
        return of_rows[:, :, 0] if self.group == 1 else of_rows.mean(2)

    def _scores(self, query: Tensor) -> Float[Tensor, "batch kv_heads group n key"]:
        batch, _, n, dim = query.shape
        # (batch, kv_heads, group · n, dim): one product per key-value head, whose keys need not be repeated.
        packed = (wide(query) * self.scaling).reshape(batch, self.key.shape[1], self.group * n, dim)
        scores = torch.matmul(packed, wide(self.key).mT)
        if self.softcap is not None:
            scores.div_(self.softcap).tanh_().mul_(self.softcap)
        return scores.view(batch, self.key.shape[1], self.group, n, -1)

    def _visible(self, columns: Tensor) -> Bool[Tensor, "batch kv_heads 1 n key"]:
        return ((self.places[:, :, None] <= columns[:, None]) & self.real[:, :, None])[:, :, None]

    def _shares(self, scores: Tensor, columns: Tensor) -> Tensor:
        if self.sink is None:
            weights = scores.softmax(-1)
        else:
            # (batch, kv_heads, group, n, 1): a column that takes weight but has no value.
            sink = self.sink.to(scores.dtype).view(1, -1, self.group, 1, 1).expand(*scores.shape[:-1], 1)
            weights = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
        if self.pads is None:
            return weights
        padding = columns < self.pads[:, None].to(columns.device)
        return weights.masked_fill(padding[:, None, None, :, None], 0.0)  # the softmax of a row of −inf is NaN
