"""The three kernels: forward, one tile of queries against all the keys that it sees; backward without atomics, over
tiles of queries for dq and over tiles of keys for dk and dv. All in O(T) memory.

With w = u / D and δ_t = Σ_j w_tj (do_t·v_j):  ds_tj = (u'_tj (do_t·v_j) − a'_tj δ_t) / D_t  where rows are normalized,
else ds_tj = u'_tj (do_t·v_j);  dv_j = Σ_t w_tj do_t,  dq_t = scaling Σ_j ds_tj k_j,  dk_j = scaling Σ_t ds_tj q_t.

δ_t equals do_t·o_t, but is summed anew in fp32: where a row's scores are near zero, so is softpick's D, and 1 / D would
turn the rounding of a bf16 output into gradients as large as the true ones.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from sinkscope.attention.kernels.tiles import (
    keys_seen,
    load_tile,
    matrix,
    product,
    queries_seeing,
    seen_by,
    sees,
    store_tile,
    weigh,
)


# Triton would compile other code for sizes of 1 and for multiples of 16, which a `Specialization` does not tell apart.
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

    Grid (tiles of queries, heads, batch). Channels of all tensors are adjacent.

    Args:
        query, key, value, output: Tensors (batch, heads, token, channel).
        denominator, shift: Contiguous fp32 (batch, heads, queries), written where rows are divided and where ACTIVATION
            is softpick.
        query_strides, key_strides, value_strides, output_strides: Of batch, head and token.
        group: Query heads per key head.
        queries, keys: Numbers of tokens.
        window: A query sees its last `window` keys.
        scaling: Factor of q·k.
        ACTIVATION, CAUSAL: Weights and mask, as in `KernelPlan`.
        NORMALIZED: Whether rows are divided, `KernelPlan.divides`.
        DIM, VALUE_DIM: Channels of a head.
        WIDTH, VALUE_WIDTH: The powers of two that hold them.
        ROWS, COLUMNS: Queries and keys of a tile.
        WIDEN: See `product`.
    """
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # the longest causal rows start first
    # In 64 bits, because offsets into large tensors exceed 2³¹.
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
                # m = max(max s, 0) starts at 0, so hidden scores set to 0 never raise it. When it rises, sums taken
                # under the old m shrink by e^(old − new), as in flash attention.
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
        # `EPSILON` of `plan.py`, written out: compiled kernels read no globals.
        total += 1e-8
        gathered = gathered / total[:, None]
        stored = (batch * tl.num_programs(1) + head) * queries + rows
        tl.store(denominator + stored, total, mask=rows < queries)
        if ACTIVATION == "softpick":
            tl.store(shift + stored, peak, mask=rows < queries)
    output = matrix(output, output_strides, batch, head)
    store_tile(output, rows, output_strides[2], queries, gathered, VALUE_DIM, VALUE_WIDTH)


@triton.jit(do_not_specialize=["group", "queries", "keys", "window"])
@no_type_check
def query_kernel(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    upstream: tl.tensor,
    denominator: tl.tensor,
    shift: tl.tensor,
    delta: tl.tensor,
    query_slope: tl.tensor,
    query_strides: tl.tuple,
    key_strides: tl.tuple,
    value_strides: tl.tuple,
    upstream_strides: tl.tuple,
    slope_strides: tl.tuple,
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
    """dq, and δ for `key_kernel`.

    Grid and other arguments as in `forward_kernel`.

    Args:
        upstream: Gradient of the output.
        denominator, shift: As the forward kernel wrote them.
        delta: δ, contiguous fp32 (batch, heads, queries), written here where rows are divided.
        query_slope: dq, written here.
        slope_strides: Those of dq.
    """
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    key = matrix(key, key_strides, batch, head // group)
    value = matrix(value, value_strides, batch, head // group)

    rows = tile * ROWS + tl.arange(0, ROWS)
    offset = keys - queries
    places = rows + offset
    seen = seen_by(places, keys, window, CAUSAL)[:, None]
    queried = load_tile(matrix(query, query_strides, batch, head), rows, query_strides[2], queries, DIM, WIDTH)
    upstream = matrix(upstream, upstream_strides, batch, head)
    sent = load_tile(upstream, rows, upstream_strides[2], queries, VALUE_DIM, VALUE_WIDTH)
    stored = (batch * tl.num_programs(1) + head) * queries + rows
    peak = tl.zeros((ROWS,), tl.float32)
    if ACTIVATION == "softpick":
        peak = tl.load(shift + stored, mask=rows < queries, other=0.0)
    last = tl.minimum(tile * ROWS + ROWS, queries) - 1

    if NORMALIZED:
        # δ is a sum over all keys, so it takes a pass of its own before the first ds. Rows past the end divide by 1.
        total = tl.load(denominator + stored, mask=rows < queries, other=1.0)
        balance = tl.zeros((ROWS,), tl.float32)
        for run in tl.static_range(3):
            begin, end = keys_seen(tile * ROWS + offset, last + offset, keys, window, COLUMNS, CAUSAL, run)
            for column in tl.range(begin, end, COLUMNS):
                columns = column + tl.arange(0, COLUMNS)
                keyed = load_tile(key, columns, key_strides[2], keys, DIM, WIDTH)
                values = load_tile(value, columns, value_strides[2], keys, VALUE_DIM, VALUE_WIDTH)
                scores = scaling * product(queried, tl.trans(keyed), WIDEN)
                weight, _, _, _ = weigh(scores, peak[:, None], seen, ACTIVATION)
                if run != 1:
                    visible = sees(places[:, None], columns[None, :], keys, window, CAUSAL)
                    weight = tl.where(visible, weight, 0.0)
                balance += tl.sum(weight * product(sent, tl.trans(values), WIDEN), 1)
        balance = balance / total
        tl.store(delta + stored, balance, mask=rows < queries)

    gathered = tl.zeros((ROWS, WIDTH), tl.float32)
    for run in tl.static_range(3):
        begin, end = keys_seen(tile * ROWS + offset, last + offset, keys, window, COLUMNS, CAUSAL, run)
        for column in tl.range(begin, end, COLUMNS):
            columns = column + tl.arange(0, COLUMNS)
            keyed = load_tile(key, columns, key_strides[2], keys, DIM, WIDTH)
            values = load_tile(value, columns, value_strides[2], keys, VALUE_DIM, VALUE_WIDTH)
            scores = scaling * product(queried, tl.trans(keyed), WIDEN)
            _, _, slope, share_slope = weigh(scores, peak[:, None], seen, ACTIVATION)
            score_slope = slope * product(sent, tl.trans(values), WIDEN)
            if NORMALIZED:
                score_slope = (score_slope - share_slope * balance[:, None]) / total[:, None]
            if run != 1:
                visible = sees(places[:, None], columns[None, :], keys, window, CAUSAL)
                score_slope = tl.where(visible, score_slope, 0.0)
            gathered += product(score_slope.to(keyed.dtype), keyed, WIDEN)
    query_slope = matrix(query_slope, slope_strides, batch, head)
    store_tile(query_slope, rows, slope_strides[2], queries, scaling * gathered, DIM, WIDTH)


@triton.jit(do_not_specialize=["group", "queries", "keys", "window"])
@no_type_check
def key_kernel(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    upstream: tl.tensor,
    denominator: tl.tensor,
    shift: tl.tensor,
    delta: tl.tensor,
    key_slope: tl.tensor,
    value_slope: tl.tensor,
    query_strides: tl.tuple,
    key_strides: tl.tuple,
    value_strides: tl.tuple,
    upstream_strides: tl.tuple,
    key_slope_strides: tl.tuple,
    value_slope_strides: tl.tuple,
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
    """dk and dv of one tile of `COLUMNS` keys, summed over the query heads of its group, `ROWS` queries at a time.

    Grid (tiles of keys, key heads, batch). Arguments as in `query_kernel`, which wrote `delta`; dk and dv are
    `key_slope` and `value_slope`. Scores stand transposed, (COLUMNS, ROWS). Rows past the end of the queries need no
    mask: their upstream gradient and δ are zero.
    """
    tile = tl.program_id(0)
    own_head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    columns = tile * COLUMNS + tl.arange(0, COLUMNS)
    offset = keys - queries
    keyed = load_tile(matrix(key, key_strides, batch, own_head), columns, key_strides[2], keys, DIM, WIDTH)
    value = matrix(value, value_strides, batch, own_head)
    values = load_tile(value, columns, value_strides[2], keys, VALUE_DIM, VALUE_WIDTH)

    last = tl.minimum(tile * COLUMNS + COLUMNS, keys) - 1
    to_keys = tl.zeros((COLUMNS, WIDTH), tl.float32)
    to_values = tl.zeros((COLUMNS, VALUE_WIDTH), tl.float32)
    for member in range(group):
        head = own_head * group + member
        queries_at = matrix(query, query_strides, batch, head)
        upstream_at = matrix(upstream, upstream_strides, batch, head)
        # This grid counts key heads: times `group` they are the query heads, by which rows are stored.
        stored = (batch * tl.num_programs(1) * group + head) * queries
        for run in tl.static_range(3):
            begin, end = queries_seeing(tile * COLUMNS, last, queries, offset, window, ROWS, CAUSAL, run)
            for row in tl.range(begin, end, ROWS):
                rows = row + tl.arange(0, ROWS)
                places = rows + offset
                queried = load_tile(queries_at, rows, query_strides[2], queries, DIM, WIDTH)
                sent = load_tile(upstream_at, rows, upstream_strides[2], queries, VALUE_DIM, VALUE_WIDTH)
                peak = tl.zeros((ROWS,), tl.float32)
                if ACTIVATION == "softpick":
                    peak = tl.load(shift + stored + rows, mask=rows < queries, other=0.0)
                scores = scaling * product(keyed, tl.trans(queried), WIDEN)
                seen = seen_by(places, keys, window, CAUSAL)[None, :]
                weight, _, slope, share_slope = weigh(scores, peak[None, :], seen, ACTIVATION)
                score_slope = slope * product(values, tl.trans(sent), WIDEN)
                if NORMALIZED:
                    # 1 past the end, where 0 / 0 would be NaN and spoil the sums over queries.
                    total = tl.load(denominator + stored + rows, mask=rows < queries, other=1.0)[None, :]
                    balance = tl.load(delta + stored + rows, mask=rows < queries, other=0.0)[None, :]
                    weight = weight / total
                    score_slope = (score_slope - share_slope * balance) / total
                if run != 1:
                    visible = sees(places[None, :], columns[:, None], keys, window, CAUSAL)
                    weight = tl.where(visible, weight, 0.0)
                    score_slope = tl.where(visible, score_slope, 0.0)
                to_values += product(weight.to(sent.dtype), sent, WIDEN)
                to_keys += product(score_slope.to(queried.dtype), queried, WIDEN)
    key_slope = matrix(key_slope, key_slope_strides, batch, own_head)
    store_tile(key_slope, columns, key_slope_strides[2], keys, scaling * to_keys, DIM, WIDTH)
    value_slope = matrix(value_slope, value_slope_strides, batch, own_head)
    store_tile(value_slope, columns, value_slope_strides[2], keys, to_values, VALUE_DIM, VALUE_WIDTH)
