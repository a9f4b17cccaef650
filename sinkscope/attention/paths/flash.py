"""Softmax attention on the CPU's flash kernel: causal squares as such, any other mask written in blocks of queries, on
the keys within their reach, and with slots that need no further key, since only the log-sum-exp changes.

With slots of logits b and values v*, and L' = log(e^L + Σ e^b), the output y is e^(L − L') times the kernel's plus
Σ e^(b − L') v*. The kernel's backward pass, given y and L', computes exactly the gradients of q, k and v; a slot's own
is ∂L/∂b = p (g·v* − g·y) with p = e^(b − L') and g the gradient of y. L itself is never differentiated, which on the
CPU would silently be wrong. Kept for the backward pass are queries, keys, values, output and L': O(T) memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinkscope.attention.paths.blocks import RowBlock, rows_of
from sinkscope.attention.visibility import Visibility
from sinkscope.errors import InputError

LEAST = 64  # tokens of a square on average; smaller ones cost less in blocks


@dataclass(frozen=True)
class Square:
    """Tokens `start` … `stop`, each of which sees those from `start` up to itself; those before `ahead` see each other.

    Nothing else is seen in these rows. Without a prefix, `ahead` is `start` + 1.
    """

    start: int
    stop: int
    ahead: int


def squares_of(visibility: Visibility) -> list[list[Square]] | None:
    """The squares that a mask consists of, sample by sample (one list where all are alike); None where it does not.

    Rows in no square see nothing. None too where many small squares would cost more than a written mask.
    """
    spans, query = visibility.spans, visibility.query
    if spans is None or query is not visibility.key or not visibility.mask.solid(query, query):
        return None
    # Samples that are all alike become one entry; otherwise each needs its own, because squares go by sample index.
    rows = torch.stack(torch.broadcast_tensors(*spans), -1).unique_consecutive(dim=0)
    if len(rows) > 1 and len(rows) < max(len(spans[0]), len(spans[1])):
        rows = torch.stack(torch.broadcast_tensors(*spans), -1)
    by_sample = [_squares(first, stop) for first, stop in (row.unbind(-1) for row in rows)]
    if any(squares is None for squares in by_sample):
        return None
    known = [squares for squares in by_sample if squares is not None]
    return known if sum(map(len, known)) * LEAST <= max(LEAST, len(known) * query.count) else None


def _squares(first: Int[Tensor, "query"], stop: Int[Tensor, "query"]) -> list[Square] | None:
    """From the columns `first` … `stop` that each query of a sample sees."""
    seeing = first < stop
    # Runs of queries whose keys begin at the same column, −1 where nothing is seen. `at`: the first row of each run,
    # which sees itself alone or, where there is one, the whole prefix.
    begin, lengths = torch.where(seeing, first, -1).unique_consecutive(return_counts=True)
    at = lengths.cumsum(0) - lengths
    ahead = stop[at].where(begin >= 0, 0)
    # In a square, row t sees columns up to max(t + 1, end of the prefix).
    itself = torch.arange(1, len(first) + 1, device=first.device)
    reached = torch.maximum(itself, ahead.repeat_interleave(lengths))
    # A square begins on the diagonal, and its prefix ends inside it.
    fits = (begin == at) & (ahead <= at + lengths) | (begin < 0)
    if not bool(fits.all()) or not bool(((stop == reached) | ~seeing).all()):
        return None
    rows = torch.stack([at, at + lengths, ahead], -1)[begin >= 0]
    return [Square(*numbers) for numbers in rows.tolist()]


try:
    from torch.utils._python_dispatch import _disable_current_modes as unwatched
except ImportError:  # it is private to torch; without it watchers see one more call, and compute L themselves
    unwatched = nullcontext  # type: ignore[assignment]

FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
DEVICES = ("cpu",)  # where the kernel runs
ROWS = 256  # queries of a block under a mask
APART = 0.8  # samples go one by one where that leaves at most this share of the scores


def attention(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key dim"],
    logits: Float[Tensor, "batch heads query slots"],
    values: Float[Tensor, "slots heads dim"],
    visibility: Visibility,
    scaling: float,
) -> Float[Tensor, "batch heads query dim"]:
    """Softmax over slots and tokens. Raises `InputError` where differentiated twice.

    Args:
        query, key, value: q, k and v, of one width.
        logits: Of the slots, finished: scaling · q·k* + b.
        values: v* of the slots, per query head.
        visibility: Which keys each query sees; slots are seen by every query that sees a token.
        scaling: Factor of q·k.
    """
    return _FlashWithSink.apply(query, key, value, logits, values, _Map(visibility, scaling))[0]


@dataclass(frozen=True, eq=False)
class _Map:
    """What is computed beside tensors with gradients."""

    visibility: Visibility
    scaling: float

    @property
    def is_whole(self) -> bool:
        """Whether one call of the kernel does it, without a written mask."""
        return self.visibility.is_causal_square or self.visibility.is_full

    @property
    def squares(self) -> list[tuple[slice, Square]] | None:
        """Samples and causal squares that the kernel gets at once; None where the mask is not made of those.

        None in a compiled graph too, which no number of a mask may decide.
        """
        return None if torch.compiler.is_compiling() else self._squares

    @cached_property
    def _squares(self) -> list[tuple[slice, Square]] | None:
        by_sample = squares_of(self.visibility)
        # Short rows fit one block for all samples: one call under a written mask instead of one per sample and square.
        if by_sample is None or (len(by_sample) > 1 and self.visibility.query.count <= ROWS):
            return None
        if len(by_sample) == 1:
            return [(slice(None), square) for square in by_sample[0]]
        return [(slice(at, at + 1), square) for at, squares in enumerate(by_sample) for square in squares]

    def blocks(self, batch: int) -> Iterator[tuple[slice, RowBlock]]:
        """Samples and queries that the kernel gets at once."""
        if batch > 1 and _differ(self.visibility):
            for sample in range(batch):
                part = slice(sample, sample + 1)
                yield from ((part, block) for block in rows_of(_of_samples(self.visibility, part), ROWS))
        else:
            yield from ((slice(0, batch), block) for block in rows_of(self.visibility, ROWS))


def _differ(visibility: Visibility) -> bool:
    """Whether samples reach so differently far, as packed documents do, that blocks of all of them would waste time."""
    if (spans := visibility.spans) is None or len(spans[0]) == 1 or visibility.query.count <= ROWS:
        return False
    reached = [
        (first.amin(1), stop.amax(1)) for first, stop in zip(*(span.split(ROWS, 1) for span in spans), strict=True)
    ]
    # Blocks have equally many rows, so that numbers of columns stand for numbers of scores.
    separate = sum((stop - first).clamp(min=0).sum() for first, stop in reached)
    joint = sum((stop.amax() - first.amin()).clamp(min=0) * len(first) for first, stop in reached)
    return bool(separate <= APART * joint)


def _of_samples(visibility: Visibility, samples: slice) -> Visibility:
    """The same for some of the samples, of a mask that is a rule, which has spans."""
    key = visibility.key.part(slice(None), samples)
    # One object on both sides marks a square.
    query = key if visibility.query is visibility.key else visibility.query.part(slice(None), samples)
    return Visibility(visibility.mask, query, key)


def _written(block: RowBlock, dtype: torch.dtype) -> Tensor:
    """The block's mask as the kernel adds it. Queries that see nothing see everything here, instead of 0 / 0."""
    batch = max([len(hidden) for _, hidden in block.hidden], default=1)
    heads = max([hidden.shape[1] for _, hidden in block.hidden], default=1)
    rows, keys = (part.stop - part.start for part in (block.rows, block.keys))
    mask = torch.zeros(batch, heads, rows, keys, dtype=dtype)
    for columns, hidden in block.hidden:
        shielded = hidden if block.blank is None else hidden & ~block.blank
        mask[..., columns].masked_fill_(shielded, -torch.inf)
    return mask


class _FlashWithSink(torch.autograd.Function):
    @staticmethod
    def forward(
        query: Tensor, key: Tensor, value: Tensor, logits: Tensor, values: Tensor, of: _Map
    ) -> tuple[Tensor, Tensor]:
        output, lse = _forward(query, key, value, of)
        if not logits.shape[-1]:
            return output, lse
        # logaddexp, not log(e^L + e^b), where either term overflows fp32 above 88.
        total = torch.logaddexp(lse.to(logits.dtype), logits.logsumexp(-1))
        shares = (logits - total[..., None]).exp()
        kept = (lse - total).exp().masked_fill(lse == torch.inf, 0.0)  # of rows that see nothing, ∞ − ∞
        output = output * kept[..., None] + torch.einsum("bhts,shd->bhtd", shares, values)
        return output.to(query.dtype), total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.map = inputs
        ctx.mark_non_differentiable(outputs[1])  # backward ignores L', so it must not look differentiable
        ctx.save_for_backward(*tensors, *outputs)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise InputError("the flash kernel has no second derivative: ask for path='reference'")
        query, key, value, logits, values, output, total = ctx.saved_tensors
        gradients = _backward(upstream, query, key, value, output, total, ctx.map)
        if not logits.shape[-1]:
            return *gradients, None, None, None
        # Autocast would round both products to bf16.
        with torch.autocast("cpu", enabled=False):
            wide = upstream.to(logits.dtype)
            shares = (logits - total[..., None]).exp()
            met = torch.einsum("bhtd,shd->bhts", wide, values) - (wide * output).sum(-1, keepdim=True)
            return *gradients, shares * met, torch.einsum("bhts,bhtd->shd", shares, wide), None


def _forward(query: Tensor, key: Tensor, value: Tensor, of: _Map) -> tuple[Tensor, Tensor]:
    """Output and L of the tokens; of queries that see none, 0 and +inf, under which every share is exp(−inf) = 0."""
    if of.is_whole:
        return FORWARD(query, key, value, 0.0, of.visibility.is_causal_square, scale=of.scaling)
    if of.squares is not None:
        return _forward_squares(query, key, value, of.squares, of.scaling)
    output, lse = torch.empty_like(query), None
    for samples, block in of.blocks(len(query)):
        rows, keys = (samples, slice(None), block.rows), (samples, slice(None), block.keys)
        mask = _written(block, query.dtype)
        part, total = FORWARD(query[rows], key[keys], value[keys], 0.0, False, attn_mask=mask, scale=of.scaling)
        # Filling is always right, but costs a copy; a compiled graph cannot ask whether it is needed.
        if block.blank is not None and (torch.compiler.is_compiling() or bool(block.blank.any())):
            part, total = part.masked_fill(block.blank, 0.0), total.masked_fill(block.blank[..., 0], torch.inf)
        if part.shape == query.shape:  # a single block is the whole, without a copy
            return part, total
        lse = total.new_empty(query.shape[:3]) if lse is None else lse
        output[rows], lse[rows] = part, total
    assert lse is not None
    return output, lse


def _backward(
    upstream: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, total: Tensor, of: _Map
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values. The kernel makes its weights exp(s − L) from the L that it is given: with
    L', those on tokens beside slots."""
    if of.is_whole:
        causal = of.visibility.is_causal_square
        return BACKWARD(upstream, query, key, value, output, total, 0.0, causal, scale=of.scaling)
    if of.squares is not None:
        return _backward_squares(upstream, query, key, value, output, total, of.squares, of.scaling)
    wide = torch.promote_types(query.dtype, torch.float32)  # of sums over blocks
    to_query, to_key, to_value = torch.empty_like(query), *(torch.zeros_like(x, dtype=wide) for x in (key, value))
    for samples, block in of.blocks(len(query)):
        rows, keys = (samples, slice(None), block.rows), (samples, slice(None), block.keys)
        # Rows that see nothing, unmasked here, have L' = +inf: their weights exp(s − L') are 0, and so are gradients.
        mask, known = _written(block, query.dtype), (output[rows], total[rows], 0.0, False)
        parts = BACKWARD(upstream[rows], query[rows], key[keys], value[keys], *known, attn_mask=mask, scale=of.scaling)
        to_query[rows] = parts[0]
        to_key[keys] += parts[1]
        to_value[keys] += parts[2]
    return to_query, to_key.to(key.dtype), to_value.to(value.dtype)


def _forward_squares(
    query: Tensor, key: Tensor, value: Tensor, squares: Sequence[tuple[slice, Square]], scaling: float
) -> tuple[Tensor, Tensor]:
    output, lse = torch.empty_like(query), None
    seen = 0
    for samples, square in squares:
        at = (samples, slice(None), slice(square.start, square.stop))
        part, total = FORWARD(query[at], key[at], value[at], 0.0, True, scale=scaling)
        if square.ahead > square.start + 1:
            # The triangle hides later tokens of the prefix: these rows are replaced by a call without a mask.
            first = (samples, slice(None), slice(square.start, square.ahead))
            ahead = slice(0, square.ahead - square.start)
            with unwatched():  # watchers of the kernel get the square's L, which the lines below complete in place
                some, known = FORWARD(query[first], key[first], value[first], 0.0, scale=scaling)
            part[:, :, ahead], total[:, :, ahead] = some, known
        if part.shape == query.shape:
            return part, total
        lse = total.new_full(query.shape[:3], torch.inf) if lse is None else lse
        output[at], lse[at] = part, total
        seen += part.shape[0] * part.shape[2]
    if lse is None:
        lse = torch.full(query.shape[:3], torch.inf, dtype=torch.promote_types(query.dtype, torch.float32))
    if seen < query.shape[0] * query.shape[2]:
        # Rows in no square were never written.
        output.masked_fill_((lse == torch.inf)[..., None], 0.0)
    return output, lse


def _backward_squares(
    upstream: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    total: Tensor,
    squares: Sequence[tuple[slice, Square]],
    scaling: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """No two squares share a token, so nothing is added up between them."""
    gradients: list[Tensor] = []
    for samples, square in squares:
        at = (samples, slice(None), slice(square.start, square.stop))
        above = upstream[at]
        if has_prefix := square.ahead > square.start + 1:
            ahead = slice(0, square.ahead - square.start)
            above = above.clone()
            above[:, :, ahead] = 0.0  # these rows are taken below
        parts = BACKWARD(above, query[at], key[at], value[at], output[at], total[at], 0.0, True, scale=scaling)
        if has_prefix:
            first = (samples, slice(None), slice(square.start, square.ahead))
            known = (query[first], key[first], value[first], output[first], total[first], 0.0, False)
            for part, more in zip(parts, BACKWARD(upstream[first], *known, scale=scaling), strict=True):
                # The prefix's queries have 0 so far; its keys and values have the part that comes from later rows.
                part[:, :, ahead] += more
        if parts[0].shape == query.shape:
            return parts[0], parts[1], parts[2]
        gradients = gradients or [torch.zeros_like(x) for x in (query, key, value)]
        for whole, part in zip(gradients, parts, strict=True):
            whole[at] = part
    to_query, to_key, to_value = gradients or [torch.zeros_like(x) for x in (query, key, value)]
    return to_query, to_key, to_value
