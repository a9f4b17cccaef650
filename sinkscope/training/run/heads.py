"""Numbers of every head, kept at each evaluation of a run, from which any threshold can be read afterwards."""

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

DIGITS = 4  # significant ones that are kept
ABOVE = 0.3  # the weight beyond which a query counts
REPEATED, SAMPLES = 31, 16  # random tokens that are shown twice, in so many texts
OBSERVERS: tuple[Observer, ...] = (QueriesAbove(ABOVE), QueryKeyValueNorms(), QueryKeyAngles(), SlotReceived())
OTHERS = "/others"
THERE = {  # kept name -> variable, of which the other positions are kept too where that says something
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
    """What is kept of an evaluation, beside what is logged: `observers` read it in the pass that is made anyway.

    `random`: texts of a token, and random ones that come twice behind it; None where windows are too short.
    """

    random: Int[Tensor, "sample position"] | None
    observers: tuple[Observer, ...] = OBSERVERS

    @classmethod
    def of(cls, first: Int[Tensor, "sample"], context: int, vocabulary: int) -> HeadNumbers:
        """`first`: the tokens that windows begin with. The random ones are the same in every run of a vocabulary."""
        count = min(REPEATED, (context - 1) // 2)
        if count < 2:
            return cls(None)
        draw = torch.Generator().manual_seed(0)
        given = first[:SAMPLES, None].cpu()
        drawn = torch.randint(0, vocabulary, (len(given), count), generator=draw)
        return cls(torch.cat([given, drawn, drawn], 1))

    def __call__(self, model: nn.Module, measurement: Measurement, epsilon: float) -> Numbers:
        """By name, a number of every head (layer after layer) or depth; None for what is not known.

        With s the strongest position (`measurements.strongest_position`), which `position` names, means over samples:

        - `alpha/first`, `alpha`: alpha_0 and alpha_s; `queries_above`: the share of queries t ≥ s with A[t, s] > 0.3;
          `slot`: the weight on slots, of models that have them
        - `value_norm`, `key_norm`, `cosine`: ‖v_s‖, ‖k_s‖ and the mean of cos(q_t, k_s) over t ≠ s; each with
          `/others`, the mean over all other positions
        - `hidden_norm` at every depth: ‖h_s‖, and `/others`
        - `prefix_matching`: on random tokens that come twice, the mean weight of a query of the second time on the
          token that followed its own the first time (Olsson et al. 2022)
        """
        data = measurement.data
        found = strongest_position(data, epsilon)
        kept: Numbers = {"position": [None if found is None else found.position]}
        received = data["attention_received"].transpose(*PER_HEAD).values
        kept["alpha/first"] = _mean(received[..., 0])
        place = None if found is None else data["position"].values.tolist().index(found.position)
        for name, (variable, others) in THERE.items():
            kept |= _at(name, data[variable].transpose(*PER_HEAD).values, place, others)
        kept |= _at("hidden_norm", data["hidden_norm"].transpose("sample", "depth", "position").values, place, True)
        if "slot_received" in data:
            kept["slot"] = _mean(data["slot_received"].transpose("sample", "layer", "head").values)
        if self.random is not None:
            kept |= _prefix_matching(model, self.random)
        return kept


def _prefix_matching(model: nn.Module, random: Int[Tensor, "sample position"]) -> Numbers:
    """Of a bidirectional model nothing: there every token sees what follows it."""
    count = (random.shape[1] - 1) // 2
    seen = measure(model, random, [AttentionBefore(count - 1)], batch_size=len(random)).data
    if "attention_before" not in seen:
        return {}
    again = seen["attention_before"].transpose(*PER_HEAD).values[..., -count:]  # sink tokens may stand in front
    return {PREFIX: _mean(metrics.nanmean(again, -1))}


def _at(name: str, values: Float[np.ndarray, "sample *of position"], place: int | None, others: bool) -> Numbers:
    """What stands at a place along the last axis, and elsewhere; unknown where there is no place."""
    if place is None:
        nothing = _mean(np.full(values.shape[:-1], np.nan))
        return {name: nothing} | ({f"{name}{OTHERS}": nothing} if others else {})
    kept = {name: _mean(values[..., place])}
    if others:
        kept[f"{name}{OTHERS}"] = _mean(metrics.mean_elsewhere(values, place))
    return kept


def _mean(values: Float[np.ndarray, "sample *of"]) -> list[float | None]:
    """Means over samples to some digits, one after the other."""
    means = metrics.nanmean(values, 0).ravel().tolist()
    return [float(f"{mean:.{DIGITS}g}") if math.isfinite(mean) else None for mean in means]
