"""The attention weights of a call, a few rows at a time."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from sinkscope.measurement.calls.call import AttentionCall, in_bits
from sinkscope.measurement.calls.masks import Rule

ROWS = 64  # queries of a block; keys inside the block are handled one by one
HELD = 2**19  # products at once: more do not fit the processor's cache


def is_plain(call: AttentionCall) -> bool:
    """Whether every query sees all keys, or all keys up to itself, without padding."""
    return isinstance(call.mask, Rule) and call.mask.is_triangle


def is_linear(call: AttentionCall) -> bool:
    """Whether logits are scaling · q·k and nothing else, on all keys or all keys up to the query."""
    plain = call.is_softmax and is_plain(call) and call.entries is None
    return plain and call.softcap is None and call.bias is None


def seen_by_plain(call: AttentionCall, rows: slice) -> Int[Tensor, "query"]:
    """How many keys these queries see, where `is_plain`."""
    mask = call.mask
    assert isinstance(mask, Rule)
    places = torch.arange(rows.start, rows.stop, device=call.query.device) + mask.start + 1
    return places.clamp(max=mask.keys) if mask.causal else torch.full_like(places, mask.keys)


def linear_spread(
    call: AttentionCall,
) -> tuple[Float[Tensor, "batch heads query"], Float[Tensor, "batch #heads query"]]:
    """σ_t, the norm of each row's centered logits including the sink's, and n_t, their number; for `is_linear` calls.
    With M = Σ_k k kᵀ over the keys before a block of queries, Σ_k (q·k)² = qᵀ M q: O(T · dim²) time. Subtracting the
    mean key shifts all logits of a row equally and preserves their digits.
    """
    batch, heads, queries, _ = call.query.shape
    center = call.wide_key.mean(2, keepdim=True)
    key = (call.wide_key - center).flatten(0, 1)
    query = call.scaled_query.reshape(len(key), call.group, queries, -1)
    # Some key-value heads at a time: the logits inside blocks are group · (queries + ROWS) · ROWS numbers per head.
    step = max(1, HELD // (call.group * (queries + ROWS) * ROWS))
    parts = [_moments(call, query[at : at + step], key[at : at + step]) for at in range(0, len(key), step)]
    total, squares = (torch.cat(part).view(batch, heads, queries) for part in zip(*parts, strict=True))
    count = seen_by_plain(call, slice(0, queries)).float().expand(batch, 1, -1)
    if call.sink is not None:
        sink = call.sink.expand(batch, heads, queries)
        # Centering the keys moved the logits of a row by q·center, so the sink's logit moves with them.
        shift = (query.view(batch, -1, call.group, queries, query.shape[-1]) * center[:, :, None]).sum(-1)
        shown = sink > -torch.inf  # a slot without mass does not count
        slot_logit = (sink - shift.reshape(sink.shape)).where(shown, 0.0)
        total, squares, count = total + slot_logit, squares + slot_logit.square(), count + shown
    count = count.clamp(min=1)
    # σ² = Σ s² − (Σ s)² / n; rounding can put a flat row below 0.
    spread = (squares - total.square() / count).clamp(min=0).sqrt()
    return spread, count


def _moments(
    call: AttentionCall, query: Float[Tensor, "kv group query dim"], key: Float[Tensor, "kv key dim"]
) -> tuple[Tensor, Tensor]:
    """Σ_k s and Σ_k s² of each row, (kv, group, query)."""
    mask = call.mask
    assert isinstance(mask, Rule)
    if not mask.causal:
        return _of_all(query, key)
    # Every query sees the cached keys before `start`; the keys from there on are the queries' own, cut into blocks.
    queries, start = query.shape[2], mask.start
    # Zeros fill the last block: zero keys add nothing to the sums, and the extra queries are cut off at the end.
    short = -queries % ROWS
    in_block = F.pad(key[:, start : start + queries], (0, 0, 0, short)).unflatten(1, (-1, ROWS))
    cut = F.pad(query, (0, 0, 0, short)).unflatten(2, (-1, ROWS))
    before = key[:, :start]
    # Over all keys before each block: Σ k, (kv, block, dim), and Σ k kᵀ, (kv, block, dim, dim).
    sums = _before(in_block.sum(2), before.sum(1))
    grams = _before(in_block.mT @ in_block, before.mT @ before)
    # Logits inside the blocks, (kv, group, block, query, key), kept where key ≤ query. The product is contiguous, so
    # flatten gives a view of it, and tril_ changes it in place.
    beside = cut @ in_block[:, None].mT
    beside.flatten(0, 2).tril_()  # torch copies tensors of more than three axes
    total = torch.linalg.vecdot(cut, sums[:, None, :, None]) + beside.sum(-1)
    # Σ (q·k)² = qᵀ (Σ k kᵀ) q over earlier blocks. square_ overwrites the logits, so their sum is taken before.
    squares = torch.linalg.vecdot(cut @ grams[:, None], cut) + beside.square_().sum(-1)
    return total.flatten(2)[..., :queries], squares.flatten(2)[..., :queries]


def _before(parts: Float[Tensor, "kv block *n"], first: Float[Tensor, "kv *n"]) -> Float[Tensor, "kv block *n"]:
    """For each block, the sum of all earlier blocks: in float64, as a product, which is faster than a sum."""
    blocks = parts.shape[1]
    earlier = torch.ones(blocks, blocks, dtype=torch.float64, device=parts.device).tril(-1)
    total = (earlier @ parts.flatten(2).double()).unflatten(2, parts.shape[2:])
    return (total + first[:, None]).to(parts.dtype)


def _of_all(query: Float[Tensor, "kv group query dim"], key: Float[Tensor, "kv key dim"]) -> tuple[Tensor, Tensor]:
    total = (query @ key.sum(1)[:, None, :, None])[..., 0]
    return total, ((query @ (key.mT @ key)[:, None]) * query).sum(-1)


RowKind = Literal["largest", "entropy", "spread"]
Where = tuple[slice, slice, slice]  # samples, rows and columns of a chunk


@dataclass(frozen=True, eq=False)
class RowScores:
    """Row statistics of a call, those in `asked`: filled chunk by chunk, complete after the last chunk."""

    call: AttentionCall
    asked: Collection[RowKind]

    @cached_property
    def largest(self) -> Float[Tensor, "batch heads query"]:
        """max over visible keys of |score|; −inf where nothing is visible."""
        return self._filled(-torch.inf)

    @cached_property
    def entropy(self) -> Float[Tensor, "batch heads query"]:
        """−Σ A log A over keys and the sink, in nats; 0 in rows that do not count."""
        # −Σ A ln A = −ln 2 · Σ A log2 A over keys, plus −A ln A of the sink, whose −ln A is lse − sink.
        entropy = self._bits * -math.log(2)
        if (sink := self.sink) is not None:  # a sink without mass adds nothing
            below = (self.call.lse - sink).where(sink > -torch.inf, 0.0)
            entropy += (-below).exp() * below
        # A weight that rounds to just above 1 has a negative term; rows that do not count hold 0 · −inf = NaN.
        return entropy.clamp_(min=0).where(self.call.counted, 0.0)

    @cached_property
    def spread(self) -> tuple[Float[Tensor, "batch heads query"], Float[Tensor, "batch heads query"]] | None:
        """σ_t and n_t as in `linear_spread`, or None if that function applies: σ² = Σ d² − (Σ d)² / n, d = log A + log
        n.

        Adding log n keeps precision where it matters: d is 0 in flat rows.
        """
        return None if is_linear(self.call) else (self._filled(0.0), self._filled(1.0))

    @cached_property
    def sink(self) -> Float[Tensor, "batch heads query"] | None:
        """The logit of what the rows attend to besides keys."""
        return None if self.call.sink is None else self.call.sink.expand_as(self.call.lse)

    def take_scores(self, where: Where, scores: Float[Tensor, "_ heads _ key"]) -> None:
        """Read a chunk of scores, which are 0 where the mask hides the key."""
        if "largest" in self.asked:
            samples, rows, _ = where
            torch.maximum(scores.amax(-1), -scores.amin(-1), out=self.largest[samples, :, rows])

    def take_weights(self, where: Where, weights: Float[Tensor, "_ heads _ key"], bits: Tensor) -> None:
        """Read a chunk of weights and their base-2 logarithms; the latter are overwritten.

        `bits`: any finite number where the mask hides the key, −inf in rows that do not count.
        """
        samples, rows, columns = where
        # The spread first: the entropy overwrites the logarithms. Hidden keys add nothing, 0 times a finite number.
        if "spread" in self.asked and self.spread is not None:
            spread, count = self._spread(samples, rows, columns, bits)
            self.spread[0][samples, :, rows], self.spread[1][samples, :, rows] = spread, count
        if "entropy" in self.asked:
            torch.sum(bits.mul_(weights), -1, out=self._bits[samples, :, rows])

    @cached_property
    def _bits(self) -> Float[Tensor, "batch heads query"]:
        """Σ A log2 A over keys."""
        return self._filled(0.0)

    def _filled(self, value: float) -> Float[Tensor, "batch heads query"]:
        return torch.full_like(self.call.lse, value)

    def _spread(
        self, samples: slice, rows: slice, columns: slice, bits: Float[Tensor, "_ heads _ key"]
    ) -> tuple[Float[Tensor, "_ heads _"], Float[Tensor, "_ _ _"]]:
        visible = self.call.mask.visible(samples, rows, columns).to(bits.device)
        sink = None if self.sink is None else self.sink[samples, :, rows]
        slots = 0 if sink is None else (sink > -torch.inf).int()
        count = (visible.sum(-1) + slots).clamp(min=1).float()
        logits = torch.add(count.log()[..., None], bits, alpha=math.log(2)).masked_fill_(~visible, 0.0)
        total, squares = logits.sum(-1), torch.linalg.vector_norm(logits, dim=-1).square()
        if sink is not None:
            slot_logit = (sink - self.call.lse[samples, :, rows] + count.log()).where(sink > -torch.inf, 0.0)
            total, squares = total + slot_logit, squares + slot_logit.square()
        return (squares - total.square() / count).clamp(min=0).sqrt(), count


EPSILON = 1e-8  # of the renormalisation, as in the paper's code


@dataclass(frozen=True, eq=False)
class Chunk:
    """Weights, in fp32, of the queries `rows` of `samples` on the keys `columns`; every key outside has weight 0.

    Rows of queries that do not count (padding) are 0. `slots`: weights on slots, if any; in a softmax one column for
    all slots together, and one for each entry that is not a token. The next chunk may reuse this one's memory: copy
    what is kept.
    """

    samples: slice
    rows: slice
    columns: slice
    weights: Float[Tensor, "batch heads query key"]
    slots: Float[Tensor, "batch heads query slots"] | None = None


def has_scores(call: AttentionCall) -> bool:
    """Whether a call is a softmax of known scores over tokens and slots only, as `RowScores` needs."""
    return call.is_softmax and call.entries is None


def chunks(call: AttentionCall, row_scores: RowScores | None = None) -> Iterator[Chunk]:
    """All weights of a call, in O(chunk) memory and O(T²) arithmetic. Fills `row_scores` if the call `has_scores`.

    Softmax: A[t, k] = exp(s[t, k] − lse[t]), the weights that the layer used. Other operations: their own weights,
    renormalized row by row to |w| / (Σ|w| + 1e-8) where `metric_weights` says so. Weights that the model returned come
    in one piece.
    """
    if call.collected is not None:
        batch, _, queries, keys = call.collected.shape
        yield Chunk(slice(0, batch), slice(0, queries), slice(0, keys), call.collected)
        return
    if not call.is_softmax:
        yield from _from_operation(call)
        return
    row_scores = row_scores if has_scores(call) else None
    lse = call.counted_lse[..., None]
    # Rows that do not count have lse = +inf, so their weight on slots is 0 as well.
    slots = None if call.sink is None else (call.sink.expand(lse.shape[:3])[..., None] - lse).exp()
    places: list[Where] = []
    sizes: list[int] = []
    for samples, rows in call.parts():
        places.append((samples, rows, call.mask.extent(samples, rows)))
        sizes.append(call.heads * math.prod(part.stop - part.start for part in places[-1]))
    # Fresh memory for each chunk would cost a quarter of the time.
    room = call.query.new_empty(1 if row_scores is None else 2, max(sizes, default=0), dtype=torch.float32)
    # The last rows first: in causal layers they see most keys, and no sum has to grow.
    for (samples, rows, columns), size in zip(reversed(places), reversed(sizes), strict=True):
        if not size:
            continue
        slot = None if slots is None else slots[samples, :, rows]
        if row_scores is not None:
            yield _with_scores(row_scores, (samples, rows, columns), slot, room[:, :size])
            continue
        weights = call.weights(samples, rows, columns, room[0, :size])
        if call.entries is not None:
            entries = call.entry_scores(samples, rows).sub_(lse[samples, :, rows]).exp_()
            slot = entries if slot is None else torch.cat([slot, entries], -1)
        yield Chunk(samples, rows, columns, weights, slot)


def _with_scores(row_scores: RowScores, where: Where, slot: Tensor | None, room: Float[Tensor, "rooms _"]) -> Chunk:
    """A chunk of weights; on the way, `row_scores` reads the scores, then the logarithms that overwrite them."""
    call, (samples, rows, columns) = row_scores.call, where
    hidden: Tensor | None = None
    if call.is_product:
        scores = call.products(samples, rows, columns, room[0])
    else:
        scores = call.scores(samples, rows, columns)
        # The mask is already in these scores, with what it adds.
        hidden = scores == -torch.inf

    def blank(values: Tensor) -> None:
        if hidden is None:
            call.mask.blank(values, samples, rows, columns)
        else:
            values.masked_fill_(hidden, 0.0)

    # Hidden scores are 0 instead of −inf, which changes no maximum of magnitudes and keeps their logarithms finite; the
    # weights that come of them are blanked below.
    blank(scores)
    row_scores.take_scores(where, scores)
    bits = in_bits(scores, call.shift[samples, :, rows, None])
    weights = torch.exp2(bits, out=room[1].view(bits.shape))
    blank(weights)
    row_scores.take_weights(where, weights, bits)
    return Chunk(samples, rows, columns, weights, slot)


def _from_operation(call: AttentionCall) -> Iterator[Chunk]:
    operation = call.operation
    assert operation is not None
    for rows in call.row_parts():
        weights = call.operation_weights(rows)
        token, slot = weights.token, weights.slot
        if operation.spec.metric_weights == "renormalized":
            total = token.abs().sum(-1, keepdim=True) + slot.abs().sum(-1, keepdim=True) + EPSILON
            token, slot = token.abs() / total, slot.abs() / total
        if call.real is not None:
            ignored = ~call.real[:, None, rows, None]
            token, slot = token.masked_fill(ignored, 0.0), slot.masked_fill(ignored, 0.0)
        yield Chunk(slice(0, len(token)), rows, slice(0, token.shape[-1]), token, slot if slot.shape[-1] else None)
