"""Every metric that has one number per head, as arrays (layer, head): means over samples, NaN where not measured.

The formulas are those of `sinkscope.probes.metrics`; here stands which of them a reader sees, and in which words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float

from sinkscope.probes.metrics import exceeds, first_over_rest, nanmean
from sinkscope.probes.metrics.mechanism import value_drain_correlation
from sinkscope.report.layers import layer_labels
from sinkscope.report.observatory import heads
from sinkscope.report.observatory.places import PER_HEAD

Kind = Literal["share", "amount", "ratio", "signed"]
"""How a map is coloured: a share of attention with its threshold; an amount; a ratio around 1; a signed number."""

Values = Callable[[xr.Dataset, float, int], np.ndarray]


@dataclass(frozen=True)
class HeadMetric:
    """A number per head. `values(data, epsilon, position)` is (layer, head); `placed` ones depend on the position."""

    key: str
    title: str
    about: str
    needs: tuple[str, ...]
    values: Values
    kind: Kind = "amount"
    unit: str = ""
    placed: bool = False

    def applies(self, data: xr.Dataset) -> bool:
        """Whether the measurement holds what this needs, anywhere."""
        return all(name in data and bool(data[name].notnull().any()) for name in self.needs)

    def at(self, data: xr.Dataset, epsilon: float, positions: Sequence[int]) -> Float[np.ndarray, "place layer head"]:
        """The maps at each position; a single one for a metric that depends on none."""
        chosen = positions if self.placed else positions[:1] or (0,)
        return np.stack([self.values(data, epsilon, position) for position in chosen])


def _mean(name: str) -> Values:
    def values(data: xr.Dataset, epsilon: float, position: int) -> np.ndarray:
        return nanmean(data[name].transpose("sample", "layer", "head").values, 0)

    return values


def _mean_at(name: str) -> Values:
    def values(data: xr.Dataset, epsilon: float, position: int) -> np.ndarray:
        return nanmean(data[name].transpose(*PER_HEAD).sel(position=position).values, 0)

    return values


def _mean_over_positions(name: str) -> Values:
    def values(data: xr.Dataset, epsilon: float, position: int) -> np.ndarray:
        return nanmean(nanmean(data[name].transpose(*PER_HEAD).values, 3), 0)

    return values


def _over_others(name: str) -> Values:
    """The metric of the first token, with another token in its place."""

    def values(data: xr.Dataset, epsilon: float, position: int) -> np.ndarray:
        lengths = data[name].transpose(*PER_HEAD)
        order = [position, *(other for other in lengths["position"].values.tolist() if other != position)]
        return nanmean(first_over_rest(lengths.sel(position=order).values), 0)

    return values


def _sink_share(data: xr.Dataset, epsilon: float, position: int) -> np.ndarray:
    received = data["attention_received"].transpose(*PER_HEAD).sel(position=position).values
    return 100 * nanmean(exceeds(received, epsilon), 0)


def _drain(data: xr.Dataset, epsilon: float, position: int) -> np.ndarray:
    received, lengths = (data[name].transpose(*PER_HEAD).values for name in ("attention_received", "value_norm"))
    return nanmean(value_drain_correlation(received, lengths), 0)


def _key_angle(data: xr.Dataset, epsilon: float, position: int) -> np.ndarray:
    vectors = heads.thinned(data["key_vectors"], position, data.sizes["layer"] * data.sizes["head"])
    found = heads.manifold(vectors, position)
    return found.angle / found.chance


def _spikes(data: xr.Dataset, epsilon: float, position: int) -> np.ndarray:
    cosines = data["spike_key_cosine"].isel(probe_position=0, spikes=-1).transpose("sample", "layer", "head")
    return nanmean(cosines.values, 0)


METRICS: tuple[HeadMetric, ...] = (
    HeadMetric(
        "received",
        "Attention received",
        "Mean share of attention that the position gets from the tokens that see it; orange is above ε.",
        ("attention_received",),
        _mean_at("attention_received"),
        "share",
        placed=True,
    ),
    HeadMetric(
        "sink_share",
        "A sink, in samples",
        "The share of samples in which the attention received exceeds ε.",
        ("attention_received",),
        _sink_share,
        unit="%",
        placed=True,
    ),
    HeadMetric(
        "slot",
        "Attention on slots",
        "Share of attention that goes to no token: a key bias, a sink logit, an off-by-one.",
        ("slot_received",),
        _mean("slot_received"),
        "share",
    ),
    HeadMetric(
        "value_ratio",
        "Value norm ratio",
        "Length of the position's value over the mean of the others: far below 1, attending to it adds little.",
        ("value_norm",),
        _over_others("value_norm"),
        "ratio",
        "×",
        placed=True,
    ),
    HeadMetric(
        "key_ratio",
        "Key norm ratio",
        "Length of the position's key over the mean of the others: a sink's key is often not longer.",
        ("key_norm",),
        _over_others("key_norm"),
        "ratio",
        "×",
        placed=True,
    ),
    HeadMetric(
        "cosine",
        "Query–key cosine",
        "Mean cosine of the position's key with the queries that see it: it is the angle that makes a sink.",
        ("cos_query_key",),
        _mean_at("cos_query_key"),
        "signed",
        placed=True,
    ),
    HeadMetric(
        "drain",
        "Value drain",
        "Rank correlation of attention received with value length over the tokens: below 0, what is attended to is "
        "short.",
        ("attention_received", "value_norm"),
        _drain,
        "signed",
    ),
    HeadMetric(
        "key_angle",
        "Angle of the sink's key × chance",
        "Angle between the sink's key and the subspace of the other keys, over that of a random direction: above 1 the "
        "key lies on another manifold, below 1 where the others do.",
        ("key_vectors",),
        _key_angle,
        "ratio",
    ),
    HeadMetric(
        "spikes",
        "Key from the largest entries",
        "Cosine of the key of the first probed token, rebuilt from its few largest entries alone, with the full key.",
        ("spike_key_cosine",),
        _spikes,
        "signed",
    ),
    HeadMetric(
        "entropy",
        "Attention entropy",
        "How widely a query spreads its attention; 0 is a single key.",
        ("attention_entropy",),
        _mean("attention_entropy"),
        unit="nats",
    ),
    HeadMetric(
        "max_logit",
        "Largest logit",
        "The largest score, in absolute value, that any query gives a key.",
        ("max_logit",),
        _mean("max_logit"),
    ),
    HeadMetric(
        "output_norm",
        "Output norm",
        "Length of what the head writes, mean over positions: near 0, it does nothing.",
        ("output_norm",),
        _mean_over_positions("output_norm"),
    ),
    HeadMetric(
        "output_rank_one",
        "Rank-one share of the output",
        "Share of the output's energy along one line: near 1, the head writes one direction, more or less of it.",
        ("output_rank_one",),
        _mean("output_rank_one"),
    ),
    HeadMetric(
        "output_mean_share",
        "Mean share of the output",
        "Share of the output's energy that is its mean: at 1, every query gets the same.",
        ("output_mean_share",),
        _mean("output_mean_share"),
    ),
    HeadMetric(
        "sink_output_norm",
        "Output from the sink",
        "Length of what the sink alone contributes to the head's output.",
        ("sink_output_norm",),
        _mean("sink_output_norm"),
    ),
    HeadMetric(
        "rest_output_norm",
        "Output from the rest",
        "Length of what all other tokens contribute.",
        ("rest_output_norm",),
        _mean("rest_output_norm"),
    ),
    HeadMetric(
        "sink_output_constancy",
        "Constancy of the sink's output",
        "How alike the sink's contribution is for all queries: near 1, it acts as a bias.",
        ("sink_output_constancy",),
        _mean("sink_output_constancy"),
    ),
)


def present(data: xr.Dataset) -> list[HeadMetric]:
    """The metrics that this measurement has numbers for."""
    return [metric for metric in METRICS if metric.applies(data)]


def head_table(
    data: xr.Dataset, grids: Mapping[HeadMetric, Float[np.ndarray, "layer head"]], position: int
) -> pd.DataFrame:
    """A row per head of a layer, a column per metric; heads that a layer lacks are left out."""
    labels, count = layer_labels(data), data.sizes["head"]
    frame = pd.DataFrame({"layer": np.repeat(labels, count), "head": np.tile(np.arange(count), len(labels))})
    for metric, grid in grids.items():
        unit = f" ({metric.unit})" if metric.unit else ""
        where = f", position {position}" if metric.placed else ""
        frame[f"{metric.title}{where}{unit}"] = grid.ravel().astype(float)
    return frame.dropna(how="all", subset=frame.columns[2:], ignore_index=True)
