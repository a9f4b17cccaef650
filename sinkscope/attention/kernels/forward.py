"""The forward pass: one tile of queries against all the keys that it sees, O(T) memory."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from sinkscope.attention.kernels.tiles import keys_seen, load_tile, matrix, product, seen_by, sees, store_tile, weigh


@triton.jit(do_not_specialize=["group", "queries", "keys", "window"])
@no_type_check
def forward_kernel(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    output: tl.tensor,
    denominator: tl.tensor,
    shift: tl.tensor,
    query_strides: tl.tuple,
    key_strides: tl.tuple,
    value_strides: tl.tuple,
    output_strides: tl.tuple,
    group: int,
    queries: int,
    keys: int,
    window: int,
    scaling: float,
    ACTIVATION: tl.constexpr,
    NORMALIZED: tl.constexpr,
    CAUSAL: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDEN: tl.constexpr,
) -> None:
    """Output, and per row what the backward pass needs: the denominator Σ a + 1e-8 and softpick's shift.

    Grid (tiles of queries, heads, batch). Tensors by their strides, channels adjacent; `denominator` and `shift` are
    contiguous (batch, heads, queries), written where rows are divided and where ACTIVATION is softpick. `group`: query
    heads per key head.
    """
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # the longest causal rows start first
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    key = matrix(key, key_strides, batch, head // group)
    value = matrix(value, value_strides, batch, head // group)

    rows = tile * ROWS + tl.arange(0, ROWS)
    offset = keys - queries
    places = rows + offset
    seen = seen_by(places, keys, window, CAUSAL)[:, None]
    queried = load_tile(matrix(query, query_strides, batch, head), rows, query_strides[2], queries, DIM, WIDTH)

    last = tl.minimum(tile * ROWS + ROWS, queries) - 1
    total = tl.zeros((ROWS,), tl.float32)
    peak = tl.zeros((ROWS,), tl.float32)
    gathered = tl.zeros((ROWS, VALUE_WIDTH), tl.float32)
    for run in tl.static_range(3):
        begin, end = keys_seen(tile * ROWS + offset, last + offset, keys, window, COLUMNS, CAUSAL, run)
        for column in tl.range(begin, end, COLUMNS):
            columns = column + tl.arange(0, COLUMNS)
            keyed = load_tile(key, columns, key_strides[2], keys, DIM, WIDTH)
            scores = scaling * product(queried, tl.trans(keyed), WIDEN)
            visible = sees(places[:, None], columns[None, :], keys, window, CAUSAL)
            if ACTIVATION == "softpick":
                heard = scores if run == 1 else tl.where(visible, scores, 0.0)
                higher = tl.maximum(peak, tl.max(heard, 1))
                fade = tl.exp(peak - higher)
                gathered = gathered * fade[:, None]
                total = total * fade
                peak = higher
            weight, share, _, _ = weigh(scores, peak[:, None], seen, ACTIVATION)
            if run != 1:
                weight = tl.where(visible, weight, 0.0)
                share = tl.where(visible, share, 0.0)
            if NORMALIZED:
                total += tl.sum(share, 1)
            values = load_tile(value, columns, value_strides[2], keys, VALUE_DIM, VALUE_WIDTH)
            gathered += product(weight.to(values.dtype), values, WIDEN)
    if NORMALIZED:
        total += 1e-8
        gathered = gathered / total[:, None]
        stored = (batch * tl.num_programs(1) + head) * queries + rows
        tl.store(denominator + stored, total, mask=rows < queries)
        if ACTIVATION == "softpick":
            tl.store(shift + stored, peak, mask=rows < queries)
    output = matrix(output, output_strides, batch, head)
    store_tile(output, rows, output_strides[2], queries, gathered, VALUE_DIM, VALUE_WIDTH)
