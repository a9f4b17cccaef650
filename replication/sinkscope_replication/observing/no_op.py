"""Whether a head writes less when its query is on the sink, asked within the head (Gu et al. 2025, section 7)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.experiments import Metrics
from sinkscope.measurement import PER_HEAD, GivenTo, HeadOutputs, measure

SINK = 0.3  # the mean weight on the sink beyond which a head has it, as in the paper's rate
ON, OFF = 0.8, 0.2  # weights on the sink beyond which, and below which, a query counts
BEHIND = 16  # positions: nearer queries have little else to attend to
QUERIES = 50  # that a head needs of both kinds

PerHead = Float[np.ndarray, "layer head"]
PerQuery = Float[np.ndarray, "sample layer head position"]


def written_on_the_sink(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], position: float, batch_size: int
) -> Metrics:
    """How much a head writes at queries that are on the sink, over what it writes at those that are not.

    For every head with the sink (mean_t A_ts > 0.3) that has at least 50 queries t ≥ s + 16 with A_ts > 0.8 and as many
    with A_ts < 0.2: the mean of ‖Σ_j A_tj v_j‖ over the first, divided by the mean over the second. Its controls are
    the heads of its layer without the sink, at the same queries: what a layer writes may differ between them anyway.
    `resting/heads`: the number of such heads; `resting/on_sink`, `resting/controls`: geometric means over them. If
    there is none, only the number, 0. Runs up to layout 7 have `written/...` instead, for all heads with enough
    queries (nearly every head), compared with all others.
    """
    if math.isnan(position):
        return
    data = measure(model, inputs, [GivenTo(int(position)), HeadOutputs()], batch_size=batch_size, apart=False).data
    weights, norms = (data[name].transpose(*PER_HEAD).values for name in ("given_to", "output_norm"))
    later = slice(int(position) + BEHIND, None)
    received = weights[..., int(position) :].mean((0, 3))
    pairs = ratios(weights[..., later], norms[..., later], received)
    yield "resting/heads", float(len(pairs))
    if pairs:
        yield from zip(("resting/on_sink", "resting/controls"), np.exp(np.log(pairs).mean(0)).tolist(), strict=True)


def ratios(weights: PerQuery, norms: PerQuery, received: PerHead) -> list[tuple[float, float]]:
    """The ratio of each head with the sink and enough queries of both kinds, and the mean ratio of its controls."""
    pairs = []
    for layer, head in np.argwhere(received > SINK):
        on, off = weights[:, layer, head] > ON, weights[:, layer, head] < OFF
        controls = np.flatnonzero(received[layer] <= SINK)
        if min(on.sum(), off.sum()) < QUERIES or not len(controls):
            continue
        at_head, *others = (_ratio(norms[:, layer, one], on, off) for one in (head, *controls))
        if at_head > 0 and min(others) > 0:
            pairs.append((at_head, float(np.mean(others))))
    return pairs


def _ratio(
    norms: Float[np.ndarray, "sample position"],
    on: Bool[np.ndarray, "sample position"],
    off: Bool[np.ndarray, "sample position"],
) -> float:
    return float(norms[on].mean() / norms[off].mean()) if norms[off].mean() > 0 else math.nan
