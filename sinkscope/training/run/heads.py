"""Numbers per head, kept at each evaluation of a run, to which any threshold can be applied afterwards."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sinkscope.measurement import (
    PER_HEAD,
    AttentionBefore,
    Measurement,
    Observer,
    QueriesAbove,
    QueryKeyAngles,
    QueryKeyValueNorms,
    SlotReceived,
    measure,
    metrics,
    strongest_position,
)

DIGITS = 4  # significant digits that are kept
ABOVE = 0.3  # the weight above which a query counts
REPEATED, SAMPLES = 31, 16  # random tokens that occur twice, in so many texts
OBSERVERS: tuple[Observer, ...] = (QueriesAbove(ABOVE), QueryKeyValueNorms(), QueryKeyAngles(), SlotReceived())
OTHERS = "/others"
AT_POSITION = {  # kept name: variable, and whether the mean over the other positions is kept too
    "alpha": ("attention_received", False),
    "queries_above": ("queries_above", False),
    "value_norm": ("value_norm", True),
    "key_norm": ("key_norm", True),
    "cosine": ("cos_query_key", True),
}
PREFIX = "prefix_matching"

Numbers = dict[str, list[float | None]]


@dataclass(frozen=True)
class HeadNumbers:
    """Numbers per head of an evaluation; `observers` read them in the pass that is made anyway.

    A run keeps them of the texts that `sink_metrics` counts. `random`: texts of a first token and a random sequence
    that follows it twice; None if windows are too short.
    """

    random: Int[Tensor, "sample position"] | None
    observers: tuple[Observer, ...] = OBSERVERS

    @classmethod
    def build(cls, first: Int[Tensor, "sample"], context: int, vocabulary: int) -> HeadNumbers:
        """`first`: the first tokens of windows. Runs with one vocabulary have the same random tokens."""
        count = min(REPEATED, (context - 1) // 2)
        if count < 2:
            return cls(None)
        draw = torch.Generator().manual_seed(0)
        start = first[:SAMPLES, None].cpu()
        drawn = torch.randint(0, vocabulary, (len(start), count), generator=draw)
        return cls(torch.cat([start, drawn, drawn], 1))

    def __call__(self, model: nn.Module, measurement: Measurement, epsilon: float) -> Numbers:
        """By name, a number per head (layer by layer) or depth; None if it is not known.

        With s the strongest position (`measurement.strongest_position`), kept as `position`, means over samples:

        - `alpha/first`, `alpha`: alpha_0 and alpha_s; `queries_above`: the share of queries t ≥ s with A[t, s] > 0.3;
          `slot`: the weight on slots, of models that have them
        - `value_norm`, `key_norm`, `cosine`: ‖v_s‖, ‖k_s‖ and the mean of cos(q_t, k_s) over t ≠ s; each with
          `/others`, the mean over all other positions
        - `hidden_norm` at every depth: ‖h_s‖, and `/others`
        - `prefix_matching`: on random tokens that occur twice, the mean weight of a query of the second occurrence on
          the token that followed its own in the first one (Olsson et al. 2022)
        """
        data = measurement.data
        strongest = strongest_position(data, epsilon)
        kept: Numbers = {"position": [None if strongest is None else strongest.position]}
        received = data["attention_received"].transpose(*PER_HEAD).values
        kept["alpha/first"] = _mean(received[..., 0])
        index = None if strongest is None else data["position"].values.tolist().index(strongest.position)
        for name, (variable, others) in AT_POSITION.items():
            kept |= _at(name, data[variable].transpose(*PER_HEAD).values, index, others)
        kept |= _at("hidden_norm", data["hidden_norm"].transpose("sample", "depth", "position").values, index, True)
        if "slot_received" in data:
            kept["slot"] = _mean(data["slot_received"].transpose("sample", "layer", "head").values)
        if self.random is not None:
            kept |= _prefix_matching(model, self.random)
        return kept


def _prefix_matching(model: nn.Module, random: Int[Tensor, "sample position"]) -> Numbers:
    """Empty for a bidirectional model, in which every token sees what follows it."""
    count = (random.shape[1] - 1) // 2
    # Position 1 + count + i repeats 1 + i; what followed there is at 2 + i, that is count − 1 before the query.
    data = measure(model, random, [AttentionBefore(count - 1)], batch_size=len(random)).data
    if "attention_before" not in data:
        return {}
    second = data["attention_before"].transpose(*PER_HEAD).values[..., -count:]  # sink tokens may come first
    return {PREFIX: _mean(metrics.nanmean(second, -1))}


def _at(name: str, values: Float[np.ndarray, "sample *head position"], index: int | None, others: bool) -> Numbers:
    """The values at a position and, with `others`, their mean over all others; None everywhere without a position."""
    if index is None:
        unknown = _mean(np.full(values.shape[:-1], np.nan))
        return {name: unknown} | ({f"{name}{OTHERS}": unknown} if others else {})
    kept = {name: _mean(values[..., index])}
    if others:
        kept[f"{name}{OTHERS}"] = _mean(metrics.mean_elsewhere(values, index))
    return kept


def _mean(values: Float[np.ndarray, "sample *head"]) -> list[float | None]:
    """Means over samples, rounded and flattened."""
    means = metrics.nanmean(values, 0).ravel().tolist()
    return [float(f"{mean:.{DIGITS}g}") if math.isfinite(mean) else None for mean in means]
