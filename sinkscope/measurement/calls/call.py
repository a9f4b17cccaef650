"""One call of an attention layer, as an observer sees it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinkscope.attention import Context, Operation, Weights, dot_product
from sinkscope.hooks import Layer
from sinkscope.measurement.calls.masks import Columns, Rule, VisibleKeys, take


def locate(
    positions: Sequence[int], real: Bool[Tensor, "batch position"] | None, like: Tensor, start: int, length: int
) -> tuple[Int[Tensor, "batch n"], Bool[Tensor, "batch n"]]:
    """Column of each row's p-th real token for p in `positions`, and whether this call has that column.

    Args:
        positions: Indices among a row's real tokens, from 0.
        real: Mask over every token so far; None if all are real.
        like: A tensor with these rows, on this device.
        start: Absolute position of the call's first column.
        length: Number of the call's columns.
    """
    wanted = torch.tensor(positions, device=like.device).expand(len(like), -1)
    if real is None:
        absolute, exists = wanted, torch.ones_like(wanted, dtype=torch.bool)
    else:
        real = real.to(like.device)
        # A stable sort by padding puts real columns first, in order: order[p] is the column of the p-th real token.
        order = torch.argsort((~real).int(), dim=-1, stable=True)
        # Clamped to stay in range; `exists` marks the rows that are too short.
        absolute = order.gather(1, wanted.clamp(max=order.shape[1] - 1))
        exists = wanted < real.sum(-1, keepdim=True)
    column = absolute - start
    return column.clamp(0, length - 1), exists & (column >= 0) & (column < length)


_BACKENDS = {"cuda": torch.backends.cuda.matmul, "cpu": torch.backends.mkldnn.matmul}  # type: ignore[attr-defined]
_SHORTENED = {"tf32": 2**-10, "bf16": 2**-7}  # rounding of fp32 products if the user allowed faster ones
UNIT = 1 / math.log(2)  # bits per nat


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """True fp32: no autocast, no reduced-precision products, no gradients; results are usable outside inference
    mode.
    """
    allowed = {name: backend.fp32_precision for name, backend in _BACKENDS.items()}
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(device.type, enabled=False):
        try:
            for backend in _BACKENDS.values():
                backend.fp32_precision = "ieee"
            yield
        finally:
            for name, backend in _BACKENDS.items():
                backend.fp32_precision = allowed[name]


def in_bits(scores: Tensor, shift: Tensor) -> Tensor:
    """(scores − lse) / log 2, in place of the scores: log2 of the weights. `shift`: −lse / log 2."""
    return torch.add(shift, scores, alpha=UNIT, out=scores)


def shares(scores: Tensor, shift: Tensor) -> Tensor:
    """exp(scores − lse), in place of the scores. `shift`: −lse / log 2.

    As a power of two, which CPUs compute in a third of the time of torch.exp; the relative error, about 1e-7 · (|scores
    − lse| + |lse|), is negligible for every weight.
    """
    return in_bits(scores, shift).exp2_()


def lengths(vectors: Float[Tensor, "batch heads position dim"]) -> Float[Tensor, "batch heads position"]:
    """‖v‖₂ in fp32, computed in memory order (token by token, or head by head): six times as fast as the other."""
    if vectors.is_contiguous():
        return vectors.float().norm(dim=-1)
    return vectors.transpose(1, 2).float().norm(dim=-1).transpose(1, 2)


def product(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    room: Float[Tensor, "_"] | None = None,
) -> Float[Tensor, "batch heads query key"]:
    """q·k, written into the memory `room` if given. Grouped queries meet the key head of their group.

    The log-sum-exp is not folded into the product, although that would save a pass: scores must be rounded as in the
    layer that gave the log-sum-exp, or large ones give weights of 1 + 1e-5.
    """
    # Query head h reads key head h // group, so the queries of a group are consecutive and become rows of one product,
    # (batch · kv_heads, group · query, dim) @ (batch · kv_heads, dim, key), without repeating keys.
    groups, keys, dim = key.shape[0] * key.shape[1], key.shape[2], key.shape[3]
    left, right = query.reshape(groups, -1, dim), key.reshape(groups, keys, dim)
    shape = (*query.shape[:3], keys)
    if room is None and 2 * keys <= left.shape[1]:  # as k·q for few keys and many queries: a third of the time
        return torch.bmm(right, left.mT).mT.reshape(shape)
    out = query.new_empty(shape) if room is None else room[: math.prod(shape)].view(shape)
    torch.bmm(left, right.mT, out=out.view(groups, -1, keys))
    return out


def rounding(*tensors: Tensor) -> float:
    """Relative rounding of the coarsest of these tensors' products, in the model's own arithmetic."""
    return max(_rounding(tensor) for tensor in tensors)


def _rounding(tensor: Tensor) -> float:
    eps = torch.finfo(tensor.dtype).eps
    backend = _BACKENDS.get(tensor.device.type)
    if tensor.dtype != torch.float32 or backend is None:
        return eps
    return max(eps, _SHORTENED.get(backend.fp32_precision, 0.0))


ELEMENTS = 2**21  # scores held at once: 8 MB in fp32; much smaller or larger is slower
ROWS = 64  # queries of a chunk; fewer if they do not fit, up to twice as many if they see few keys


@dataclass(frozen=True, eq=False)
class Entries:
    """Keys after the tokens' own, each for several tokens or for a token of another stack.

    Examples: the compressed keys of DeepSeek-V4, or the encoder's in a decoder that reads both in one softmax.
    """

    key: Float[Tensor, "batch kv_heads entry dim"]
    value: Float[Tensor, "batch kv_heads entry value_dim"]
    mask: VisibleKeys


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """Queries, keys and values as the layer's attention function received them (after rotation and cache), detached.

    `query_start`, `key_start`: absolute position of the first query and key. `own_keys`: the keys of this call's own
    tokens (all of them in cross-attention). `real`, `real_keys`: False for padding, None where all are real; the first
    covers these queries, the second every token so far. `causal`: whether the metric's denominator is T − k. `sink`:
    logit of what a query may attend to besides tokens, broadcasting over (batch, heads, query); `entries`: keys in the
    same softmax that are not tokens of this layer. `operation`, with its `context`: what computes the weights of lab
    and attached layers. `kernel_lse`: the kernel's log-sum-exp, including the sink if `kernel_has_sink`. `output`: what
    the attention function returned; `samples_before`: samples of the measurement before this batch. `collected`: the
    weights, if the model returned them and nothing else is known; then queries, keys and values have width 0.
    """

    layer: Layer
    query: Float[Tensor, "batch heads query dim"]
    key: Float[Tensor, "batch kv_heads key dim"]
    value: Float[Tensor, "batch kv_heads key value_dim"]
    mask: VisibleKeys
    scaling: float
    causal: bool
    query_start: int
    key_start: int
    own_keys: slice
    real: Bool[Tensor, "batch query"] | None = None
    real_keys: Bool[Tensor, "batch position"] | None = None
    softcap: float | None = None
    bias: Float[Tensor, "_ _ query key"] | None = None
    sink: Float[Tensor, "_ heads _"] | None = None
    entries: Entries | None = None
    operation: Operation | None = None
    context: Context | None = None
    kernel_lse: Float[Tensor, "batch heads query"] | None = None
    kernel_has_sink: bool = False
    output: Float[Tensor, "batch heads query value_dim"] | None = None
    samples_before: int = 0
    collected: Float[Tensor, "batch heads query key"] | None = None

    @property
    def heads(self) -> int:
        return self.query.shape[1]

    @property
    def group(self) -> int:
        """Query heads per key-value head."""
        return self.query.shape[1] // self.key.shape[1]

    @cached_property
    def is_softmax(self) -> bool:
        """Whether weights are exp(score − log-sum-exp), and scores are known."""
        if self.collected is not None:
            return False
        if self.operation is None or self.context is None:
            return True
        # `scores` does not know a bias in the context, which holds an attached layer's softcap and added terms.
        return self.operation.spec.is_plain_softmax and self.context.bias is None

    @cached_property
    def wide_query(self) -> Float[Tensor, "batch heads query dim"]:
        return self.query.float().contiguous()

    @cached_property
    def scaled_query(self) -> Float[Tensor, "batch heads query dim"]:
        """Queries times the scale, in the order of `attention.dot_product`: for scores of 100 another order changes the
        fifth digit.
        """
        return self.scaling * self.wide_query

    @cached_property
    def wide_key(self) -> Float[Tensor, "batch kv_heads key dim"]:
        return self.key.float().contiguous()

    @cached_property
    def wide_value(self) -> Float[Tensor, "batch kv_heads key value_dim"]:
        return self.value.float().contiguous()

    @cached_property
    def query_lengths(self) -> Float[Tensor, "batch heads query"]:
        """‖q‖₂."""
        return lengths(self.wide_query)

    @cached_property
    def key_lengths(self) -> Float[Tensor, "batch kv_heads key"]:
        """‖k‖₂."""
        return lengths(self.wide_key)

    @cached_property
    def value_lengths(self) -> Float[Tensor, "batch kv_heads key"]:
        """‖v‖₂."""
        return lengths(self.wide_value)

    @cached_property
    def lse(self) -> Float[Tensor, "batch heads query"]:
        """log(Σ_visible exp(score) + Σ exp(sink)) in nats: the kernel's if it gave one, else computed in chunks."""
        # A kernel's log-sum-exp covers the entries, which are keys to it, but the learned sink only if it says so.
        lse = self._computed_lse() if self.kernel_lse is None else self.kernel_lse
        if self.entries is not None and self.kernel_lse is None:
            lse = torch.logaddexp(lse, self._lse_of_entries(self.entries))
        if self.sink is None or (self.kernel_lse is not None and self.kernel_has_sink):
            return lse
        return torch.logaddexp(lse, self.sink.expand_as(lse))

    @cached_property
    def counted(self) -> Bool[Tensor, "batch heads query"]:
        """False for queries that do not count: padding, or nothing visible."""
        # NaN passes both comparisons, so a broken row reaches the sums and is reported.
        seeing = (self.lse != -torch.inf) & (self.lse != torch.inf)
        return seeing if self.real is None else seeing & self.real[:, None, :]

    @cached_property
    def counted_lse(self) -> Float[Tensor, "batch heads query"]:
        """`lse`, with +inf for queries that do not count: exp(score − inf) = 0."""
        return self.lse.masked_fill(~self.counted, torch.inf)

    @cached_property
    def shift(self) -> Float[Tensor, "batch heads query"]:
        """−`counted_lse` / log 2: what turns scores into log2 of weights."""
        return self.counted_lse * -UNIT

    @cached_property
    def is_product(self) -> bool:
        """Whether logits are scaling · q·k, masked, and nothing else."""
        return self.is_softmax and self.softcap is None and self.bias is None and self.mask.only_hides

    def weights(
        self, samples: slice, rows: slice, columns: Columns, room: Float[Tensor, "_"] | None = None
    ) -> Float[Tensor, "batch heads query key"]:
        """exp(score − log-sum-exp) of a softmax in fp32, 0 where masked and for queries that do not count.

        Written into the memory `room` if given and usable.
        """
        shift = self.shift[samples, :, rows, None]
        if not self.is_product:
            return shares(self.scores(samples, rows, columns), shift)
        # The mask comes last: whatever hidden keys have become, even inf, is overwritten by 0.
        weights = shares(self.products(samples, rows, columns, room), shift)
        self.mask.blank(weights, samples, rows, columns)
        return weights

    def products(
        self, samples: slice, rows: slice, columns: Columns, room: Float[Tensor, "_"] | None = None
    ) -> Float[Tensor, "batch heads query key"]:
        """scaling · q·k in fp32, ignoring the mask; written into the memory `room` if given."""
        return product(self.scaled_query[samples, :, rows], self._keys_at(samples, columns), room)

    def scores(self, samples: slice, rows: slice, columns: Columns) -> Float[Tensor, "batch heads query key"]:
        """Logits in fp32, −inf where masked. Order: scale, softcap, position bias, mask; the sink is not a column."""
        query = self.wide_query[samples, :, rows]
        scores = dot_product(query, self._keys_at(samples, columns), self.scaling)
        if self.softcap is not None:
            # cap · tanh(s / cap), in place: `dot_product` returns memory of its own.
            scores.div_(self.softcap).tanh_().mul_(self.softcap)
        if self.bias is not None:
            bias = self.bias if self.bias.shape[0] == 1 else self.bias[samples]
            scores += take(bias[:, :, rows], columns)
        self.mask.restrict(scores, samples, rows, columns)
        return scores

    def entry_scores(self, samples: slice, rows: slice) -> Float[Tensor, "batch heads query entry"]:
        """Logits on `entries` in fp32, −inf where masked. Raises `ValueError` for a call without any."""
        if self.entries is None:
            raise ValueError(f"layer '{self.layer.name}' has no entries")
        scores = dot_product(self.wide_query[samples, :, rows], self.entries.key[samples].float(), self.scaling)
        if self.softcap is not None:
            scores.div_(self.softcap).tanh_().mul_(self.softcap)
        self.entries.mask.restrict(scores, samples, rows, slice(0, scores.shape[-1]))
        return scores

    def operation_weights(self, rows: slice) -> Weights:
        """Raw weights of a lab or attached layer from its operation, for the queries in `rows`."""
        assert self.operation is not None
        assert self.context is not None
        known = self.context
        return self.operation.weights(
            self.query,
            self.key,
            known.visibility,
            rows=rows,
            hidden=known.hidden,
            scaling=known.scaling,
            carried=known.carried,
            bias=known.bias,
        )

    def operation_logits(self, rows: slice) -> tuple[Float[Tensor, "batch heads query key"], ...]:
        """Scores of a lab or attached layer as its normalizer receives them, −inf where masked, for each of its
        maps.
        """
        assert self.operation is not None
        assert self.context is not None
        return self.operation.logits(self.query, self.key, self.context, rows)

    def row_parts(self) -> Iterator[slice]:
        """Rows of all samples, in slices with at most about `ELEMENTS` scores on all keys."""
        batch, heads, queries, _ = self.query.shape
        # An operation computes its rows for all samples at once, so samples cannot be cut as in `parts`.
        step = min(ROWS, max(1, ELEMENTS // (batch * heads * max(self.mask.keys, 1))))
        for start in range(0, queries, step):
            yield slice(start, min(queries, start + step))

    def locate(self, positions: Sequence[int]) -> tuple[Int[Tensor, "batch n"], Bool[Tensor, "batch n"]]:
        """Column of each row's p-th real token for p in `positions`, and whether this call has that column."""
        return locate(positions, self.real_keys, self.query, self.key_start, self.key.shape[2])

    def parts(self, columns: int | None = None) -> Iterator[tuple[slice, slice]]:
        """Samples and rows of chunks in which `columns` take at most about `ELEMENTS` scores.

        Default: the columns that a row may see; up to twice as many rows if these are few.
        """
        batch, heads, queries, _ = self.query.shape
        per_row = heads * max(columns or self.mask.keys, 1)
        rows = min(queries, ROWS if columns is None else queries, max(8, ELEMENTS // per_row))
        samples = max(1, ELEMENTS // (rows * per_row))
        for sample in range(0, batch, samples):
            several, row = slice(sample, min(batch, sample + samples)), 0
            while row < queries:
                stop = row + (rows if columns else self._height(several, row, rows))
                yield several, slice(row, min(queries, stop))
                row = stop

    def _height(self, samples: slice, start: int, rows: int) -> int:
        """How many rows from `start` on have no more scores than `rows` rows on all keys; at most twice as many.

        Only for masks whose extent is known for free.
        """
        if not isinstance(self.mask, Rule):
            return rows
        seen = self.mask.extent(samples, slice(start, min(self.query.shape[2], start + 2 * rows)))
        return max(rows, min(2 * rows, rows * self.mask.keys // max(seen.stop - seen.start, 1)))

    def _keys_at(self, samples: slice, columns: Columns) -> Float[Tensor, "batch kv_heads n dim"]:
        key = self.wide_key[samples]
        if isinstance(columns, slice):
            return key[:, :, columns]
        return key.gather(2, columns[:, None, :, None].expand(-1, key.shape[1], -1, key.shape[-1]))

    def _computed_lse(self) -> Float[Tensor, "batch heads query"]:
        lse = torch.empty(self.query.shape[:3], device=self.query.device)
        for samples, rows in self.parts():
            columns = self.mask.extent(samples, rows)
            # logsumexp subtracts the row's maximum, so large logits do not overflow; rows that see nothing get −inf.
            lse[samples, :, rows] = torch.logsumexp(self.scores(samples, rows, columns), -1)
        return lse

    def _lse_of_entries(self, entries: Entries) -> Float[Tensor, "batch heads query"]:
        lse = torch.empty(self.query.shape[:3], device=self.query.device)
        for samples, rows in self.parts(max(1, entries.key.shape[2])):
            lse[samples, :, rows] = torch.logsumexp(self.entry_scores(samples, rows), -1)
        return lse
