"""Whether a head writes less when its query is on the sink, asked within the head (Gu et al. 2025, section 7)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.experiments.observed import Metrics
from sinkscope.measurements import PER_HEAD
from sinkscope.probes import GivenTo, HeadOutputs, measure

ON, OFF = 0.8, 0.2  # weights on the sink beyond which, and below which, a query counts
QUERIES = 50  # that a head needs of both kinds

PerQuery = Float[np.ndarray, "sample layer head position"]


def written_on_the_sink(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], position: float, batch_size: int
) -> Metrics:
    """How much a head writes at queries that are on the sink, over what it writes at those that are not.

    Of every head with at least 50 queries t behind the sink s with A_ts > 0.8 and as many with A_ts < 0.2: the mean of
    ‖Σ_j A_tj v_j‖ over the first over that over the second. The controls are all other heads of its layer at the same
    queries, since what a layer writes may differ between them anyway. `written/heads`: how many heads these are;
    `written/on_sink`, `written/controls`: the geometric means over them. Only the number, 0, where there is none.
    """
    if math.isnan(position):
        return
    seen = measure(model, inputs, [GivenTo(int(position)), HeadOutputs()], batch_size=batch_size).data
    weights, norms = (seen[name].transpose(*PER_HEAD).values for name in ("given_to", "output_norm"))
    found = ratios(weights[..., int(position) + 1 :], norms[..., int(position) + 1 :])
    yield "written/heads", float(len(found))
    if found:
        yield from zip(("written/on_sink", "written/controls"), np.exp(np.log(found).mean(0)).tolist(), strict=True)


def ratios(weights: PerQuery, norms: PerQuery) -> list[tuple[float, float]]:
    """Of each head with enough queries of both kinds, its ratio and the mean ratio of the others of its layer."""
    _, layers, heads, _ = weights.shape
    found = []
    for layer in range(layers):
        for head in range(heads):
            on, off = weights[:, layer, head] > ON, weights[:, layer, head] < OFF
            if min(on.sum(), off.sum()) < QUERIES or heads < 2:
                continue
            written = [_ratio(norms[:, layer, other], on, off) for other in range(heads)]
            own = written.pop(head)
            if own > 0 and min(written) > 0:
                found.append((own, float(np.mean(written))))
    return found


def _ratio(
    norms: Float[np.ndarray, "sample position"],
    on: Bool[np.ndarray, "sample position"],
    off: Bool[np.ndarray, "sample position"],
) -> float:
    return float(norms[on].mean() / norms[off].mean()) if norms[off].mean() > 0 else math.nan
