"""Operations whose normalizer knows its derivative, block by block, with a backward pass written out.

Nothing but queries, keys, values and the output is kept: O(T) memory, O(T²) arithmetic. Blocks are small enough that
all that happens to scores between two products happens in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinkscope.attention.combination import Combination
from sinkscope.attention.normalizers.base import Differentiated, Fraction
from sinkscope.attention.paths.blocks import RowBlock, rows_of
from sinkscope.attention.visibility import Visibility
from sinkscope.errors import InputError

ROWS = 128  # queries of a block
CACHED = 2**18  # scores of a block on CPU: 1 MiB of fp32, what a core's own cache holds
HELD = 2**26  # on other devices, where small blocks would not fill the machine

Grouped = Float[Tensor, "_ _ _ _"]  # key heads of all samples, queries of a group, tokens, channels
Keyed = Float[Tensor, "_ _ _"]


def obstacle(spec: Combination, *, biased: bool = False) -> str | None:
    """Why no backward pass is written out for this operation; None where one is."""
    if not isinstance(spec.normalizer, Differentiated):
        return f"'{spec.normalizer.kind}' weights come without their derivative"
    if spec.slots:
        return "slots are further columns of every block"
    if spec.decay is not None or biased:
        return "what is added to the scores has a derivative of its own"
    return None


def attention(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    normalizer: Differentiated,
    visibility: Visibility,
    scaling: float,
) -> Float[Tensor, "batch heads query value_dim"]:
    """Weights times values; equals the reference up to rounding. Raises `InputError` where differentiated twice.

    Args:
        query, key, value: q, k and v.
        normalizer: Gives the weights and their derivative.
        visibility: Which keys each query sees.
        scaling: Factor of q·k.
    """
    batch, heads, queries, dim = query.shape
    kv_heads = key.shape[1]
    # Scaled outside the autograd function: autograd then multiplies the queries' gradient by the same factor.
    grouped = scaling * query.reshape(batch * kv_heads, heads // kv_heads, queries, dim)
    problem = _Problem(normalizer, visibility, kv_heads)
    output = _StreamedAttention.apply(grouped, key.flatten(0, 1), value.flatten(0, 1), problem)
    return output.view(batch, heads, queries, value.shape[-1])


@dataclass(frozen=True, eq=False)
class _Problem:
    """What is computed beside queries (already scaled), keys and values."""

    normalizer: Differentiated
    visibility: Visibility
    kv_heads: int

    def blocks(self, query: Grouped) -> Iterator[_Block]:
        """Blocks of the whole map, all heads of some queries before the next queries."""
        count, group = query.shape[:2]
        room = CACHED if query.device.type == "cpu" else HELD
        for rows in rows_of(self.visibility, ROWS):
            size = group * (rows.rows.stop - rows.rows.start) * (rows.keys.stop - rows.keys.start)
            step = max(1, room // size)
            for start in range(0, count, step):
                heads = slice(start, min(count, start + step))
                samples = torch.arange(heads.start, heads.stop, device=query.device) // self.kv_heads
                yield _Block(rows, heads, samples, self.kv_heads, self.normalizer)


@dataclass(frozen=True, eq=False)
class _Block:
    """Some queries of some heads; `samples`: which sample each of the heads belongs to."""

    part: RowBlock
    heads: slice
    samples: Int[Tensor, "kv_head"]
    kv_heads: int
    normalizer: Differentiated

    def queries(self, tensor: Grouped) -> Tensor:
        return tensor[self.heads, :, self.part.rows]

    def keys(self, tensor: Keyed) -> Tensor:
        return tensor[self.heads, self.part.keys]

    def count(self, scores: Tensor) -> Tensor:
        return self._of_heads(self.part.count).to(scores.dtype)

    def scores(self, query: Grouped, key: Keyed) -> Tensor:
        scores = _times(self.queries(query), self.keys(key).mT)
        return self.hide(scores, self.normalizer.hidden)

    def hide(self, scores: Tensor, value: float) -> Tensor:
        """`value` for every key that is not visible, in place."""
        for columns, hidden in self.part.hidden:
            # Slices are views, so this writes into `scores`.
            scores[..., columns].masked_fill_(self._of_heads(hidden), value)
        return scores

    def seen(self, rows: Tensor) -> Tensor:
        """The rows, zero where a query sees nothing."""
        return rows if self.part.blank is None else rows.masked_fill(self._of_heads(self.part.blank), 0.0)

    def _of_heads(self, shared: Tensor) -> Tensor:
        if shared.shape[1] > 1:  # heads that see different keys
            return shared.unflatten(1, (self.kv_heads, -1)).flatten(0, 1)[self.heads]  # (head, group, query, n)
        return shared if len(shared) == 1 else shared[self.samples]  # (head or 1, 1, query, n)


class _StreamedAttention(torch.autograd.Function):
    @staticmethod
    def forward(query: Grouped, key: Keyed, value: Keyed, problem: _Problem) -> Tensor:
        output = query.new_empty(*query.shape[:3], value.shape[-1])
        for block in problem.blocks(query):
            scores = block.scores(query, key)
            split = problem.normalizer.split(scores, block.count(scores))
            # With no visible key all scores are equal, and hidden keys may have weights: `seen` makes such rows 0.
            block.queries(output).copy_(block.seen(_divided(_times(split.numerator, block.keys(value)), split)))
        return output

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        query, key, value, ctx.problem = inputs
        ctx.save_for_backward(query, key, value, output)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise InputError("the streamed path has no second derivative: ask for path='reference'")
        query, key, value, output = ctx.saved_tensors
        problem: _Problem = ctx.problem
        normalizer = problem.normalizer
        to_query, to_key, to_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        with torch.autocast(query.device.type, enabled=False):
            for block in problem.blocks(query):
                scores = block.scores(query, key)
                count = block.count(scores)
                split = normalizer.split(scores, count)
                gradient = _divided(block.seen(block.queries(upstream)), split)
                # Σ_k w · upstream over all keys is upstream · output: no second pass over the row is needed.
                delta = (gradient * block.queries(output)).sum(-1, keepdim=True)
                slope = normalizer.slope(scores, count, split, _times(gradient, block.keys(value).mT), delta)
                # At −1e30 weights are flat and the slope is 0 by itself; at 0 they are not.
                if normalizer.hidden == 0:
                    slope = block.hide(slope, 0.0)
                # A query is in one block and is written once; a key is in several, which add up.
                block.queries(to_query).copy_(_times(slope, block.keys(key)))
                _add(block.keys(to_key), slope, block.queries(query))
                # w · g = u · (g / Z). `slope` may overwrite what it is given as upstream, but not the numerator.
                _add(block.keys(to_value), split.numerator, gradient)
        return to_query, to_key, to_value, None


def _divided(rows: Tensor, split: Fraction) -> Tensor:
    return rows if split.divisor is None else rows / split.divisor


def _times(rows: Tensor, columns: Tensor) -> Tensor:
    """(head, group, query, inner) times (head, inner, n), the group's queries stacked."""
    head, group, queries, inner = rows.shape
    return torch.bmm(rows.reshape(head, group * queries, inner), columns).view(head, group, queries, -1)


def _add(sums: Tensor, left: Tensor, right: Tensor) -> None:
    """sums (head, key, dim) += Σ over the group's queries of left (head, group, query, key) right (…, query, dim)."""
    sums.baddbmm_(left.flatten(1, 2).mT, right.flatten(1, 2))
