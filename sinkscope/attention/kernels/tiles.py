"""What the kernels share: weights and their slopes, which keys a tile sees, tiles in and out of memory, products.

Tile programs, compiled by Triton for the device or run by its interpreter. A tile is (rows, columns) or, in the pass
over keys, its transpose, so per-row values come already broadcast. Places are those of the keys: query i stands at
`offset` + i, with `offset` = keys − queries.

Nothing here runs as Python, so nothing wraps it: shape checks are kept away by `no_type_check`.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def weigh(
    scores: tl.tensor, shift: tl.tensor, seen: tl.tensor, ACTIVATION: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Weight u, its share a of the row's denominator, and the slopes du/ds and da/ds, all of the tile's shape.

    `seen`: keys that the row sees. `shift`: m of softpick, where u = relu(e), a = |e|, e = exp(s − m) − exp(−m) (Zuhri
    et al. 2025); elsewhere a = u (Gu et al. 2025, Tables 6 and 15).
    """
    if ACTIVATION == "softpick":
        exponential = tl.exp(scores - shift)
        excess = exponential - tl.exp(-shift)
        weight = tl.maximum(excess, 0.0)
        share = tl.abs(excess)
        slope = tl.where(excess > 0, exponential, 0.0)
        share_slope = tl.where(excess < 0, -exponential, slope)
    else:
        if ACTIVATION == "sigmoid" or ACTIVATION == "sigmoid_minus_log_n":
            if ACTIVATION == "sigmoid_minus_log_n":
                scores = scores - tl.log(seen)
            # e^−s = inf gives the right limit, 0.
            weight = 1.0 / (1.0 + tl.exp(-scores))
            slope = weight * (1.0 - weight)
        elif ACTIVATION == "elu":
            # e^min(s, 0) is the slope on both sides of 0, and below it the weight as well.
            slope = tl.exp(tl.minimum(scores, 0.0))
            weight = tl.where(scores > 0, scores + 1.0, slope)
        else:
            weight = tl.maximum(scores, 0.0)
            slope = tl.where(scores > 0, 1.0, 0.0)
            if ACTIVATION == "relu_over_n":
                weight = weight / seen
                slope = slope / seen
        share = weight
        share_slope = slope
    return weight, share, slope, share_slope


@triton.jit
@no_type_check
def sees(query: tl.tensor, key: tl.tensor, keys: int, window: int, CAUSAL: tl.constexpr) -> tl.tensor:
    """Whether a query sees a key.

    Args:
        query, key: Their places; the two broadcast.
        keys: Number of keys.
        window: A causal query sees its last `window` keys.
        CAUSAL: False: a query sees all keys.
    """
    visible = key < keys
    if CAUSAL:
        visible = visible & (key <= query) & (key > query - window)
    return visible


@triton.jit
@no_type_check
def seen_by(query: tl.tensor, keys: int, window: int, CAUSAL: tl.constexpr) -> tl.tensor:
    """Number of keys that each query sees, fp32, of the shape of `query`."""
    count = tl.minimum(query + 1, window) if CAUSAL else tl.zeros_like(query) + keys
    return count.to(tl.float32)


@triton.jit
@no_type_check
def keys_seen(
    first: int, last: int, keys: int, window: int, STEP: tl.constexpr, CAUSAL: tl.constexpr, RUN: tl.constexpr
) -> tuple[int, int]:
    """Begin and end, in whole steps, of one of three runs of the keys that queries at places `first` to `last` see.

    Run 0 is cut by the window, run 1 is seen by all of the queries, so that it needs no mask, run 2 is cut by the
    diagonal or by the end of the keys.

    Args:
        first, last: Places of the queries among the keys.
        keys, window, CAUSAL: As in `sees`.
        STEP: Keys read at once.
        RUN: 0, 1 or 2.
    """
    if CAUSAL:
        start = tl.maximum(first - window + 1, 0) // STEP * STEP
        stop = tl.minimum(last + 1, keys)
        # From `inner` on no window cuts; up to `outer` even the first query sees all.
        inner = tl.cdiv(tl.maximum(last - window + 1, 0), STEP) * STEP
        outer = tl.minimum(first + 1, keys) // STEP * STEP
    else:
        start = 0
        stop = keys
        inner = 0
        outer = keys // STEP * STEP
    return run_of(start, inner, outer, stop, RUN)


@triton.jit
@no_type_check
def queries_seeing(
    first: int,
    last: int,
    queries: int,
    offset: int,
    window: int,
    STEP: tl.constexpr,
    CAUSAL: tl.constexpr,
    RUN: tl.constexpr,
) -> tuple[int, int]:
    """The converse of `keys_seen`: indices of the queries that see keys at places `first` to `last`.

    Run 0 is cut by the diagonal, run 2 by the window or the end of the queries. Places are those of keys, and
    STEP queries are read at once; other arguments as in `keys_seen`.

    Args:
        queries: Number of queries.
        offset: Keys − queries, the place of the first query.
    """
    if CAUSAL:
        start = tl.maximum(first - offset, 0) // STEP * STEP
        stop = tl.maximum(tl.minimum(last + window - offset, queries), 0)
        # From `inner` on queries see the last key; up to `outer` their window still holds the first.
        inner = tl.cdiv(tl.maximum(last - offset, 0), STEP) * STEP
        outer = tl.maximum(tl.minimum(first + window - offset, queries), 0) // STEP * STEP
    else:
        start = 0
        stop = queries
        inner = 0
        outer = queries // STEP * STEP
    return run_of(start, inner, outer, stop, RUN)


@triton.jit
@no_type_check
def run_of(start: int, inner: int, outer: int, stop: int, RUN: tl.constexpr) -> tuple[int, int]:
    """[start, inner), [inner, outer) or [outer, stop), in order and within `stop` whatever the borders are.

    Args:
        start, inner, outer, stop: The borders.
        RUN: Which of the three, 0, 1 or 2.
    """
    # Where a window is narrower than a tile, the borders cross: the middle run is then empty.
    inner = tl.minimum(inner, stop)
    outer = tl.maximum(inner, outer)
    begin = start if RUN == 0 else (inner if RUN == 1 else outer)
    end = inner if RUN == 0 else (outer if RUN == 1 else stop)
    return begin, end


@triton.jit
@no_type_check
def matrix(base: tl.tensor, strides: tl.tuple, batch: tl.tensor, head: tl.tensor) -> tl.tensor:
    """Where the (tokens, channels) matrix of one head begins."""
    return base + batch * strides[0] + head * strides[1]


@triton.jit
@no_type_check
def load_tile(
    base: tl.tensor, places: tl.tensor, stride: int, count: int, DIM: tl.constexpr, WIDTH: tl.constexpr
) -> tl.tensor:
    """Rows of a matrix as a (places, WIDTH) tile; zero beyond either end.

    Args:
        base: Where the matrix (count, DIM) begins.
        places: Numbers of the rows.
        stride: From row to row, in elements.
        count: Rows of the matrix.
        DIM: Its columns.
        WIDTH: The power of two that holds them.
    """
    channels = tl.arange(0, WIDTH)
    inside = (places[:, None] < count) & (channels[None, :] < DIM)
    return tl.load(base + places[:, None].to(tl.int64) * stride + channels[None, :], mask=inside, other=0.0)


@triton.jit
@no_type_check
def store_tile(
    base: tl.tensor, places: tl.tensor, stride: int, count: int, tile: tl.tensor, DIM: tl.constexpr, WIDTH: tl.constexpr
) -> None:
    """The converse of `load_tile`, in the dtype of the matrix. Arguments as in `load_tile`; `tile`: (places, WIDTH)."""
    channels = tl.arange(0, WIDTH)
    inside = (places[:, None] < count) & (channels[None, :] < DIM)
    tl.store(base + places[:, None].to(tl.int64) * stride + channels[None, :], tile, mask=inside)


@triton.jit
@no_type_check
def product(left: tl.tensor, right: tl.tensor, WIDEN: tl.constexpr) -> tl.tensor:
    """left @ right, accumulated in fp32; fp32 factors are not rounded to TF32.

    `WIDEN`: factors become fp32 first, for the interpreter, whose product reads the bits of bf16 as integers.
    """
    if WIDEN:
        left = left.to(tl.float32)
        right = right.to(tl.float32)
    return tl.dot(left, right, input_precision="ieee")
