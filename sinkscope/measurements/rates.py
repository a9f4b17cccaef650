"""Sink rates, slot rates and norm ratios, from a measurement's dataset."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float

from sinkscope import metrics
from sinkscope.errors import unknown
from sinkscope.measurements.selection import PER_HEAD, at, column_of, layers_of, need
from sinkscope.metrics import Interval


def received(data: xr.Dataset, stack: str | None = None) -> Float[np.ndarray, "sample layer head position"]:
    """`attention_received`, of the layers of one stack or of all. Raises `InputError` for a stack that is not there."""
    values = need(data, "attention_received", "AttentionReceived").transpose(*PER_HEAD).values
    if stack is None:
        return values
    if stack not in (stacks := [str(name) for name in data["stack"].values]):
        raise unknown("stack", stack, dict.fromkeys(stacks))
    return values[:, layers_of(data, stack)]


def sink_rate(data: xr.Dataset, epsilon: float, position: int | None = None, stack: str | None = None) -> Any:
    """See `Measurement.sink_rate`."""
    warn_if_short(data)
    rate = metrics.sink_rate(received(data, stack), epsilon)
    if position is not None:
        return float(rate[column_of(data, position)])
    return xr.DataArray(rate, dims="position", coords=_coordinates(data, "position"), name="sink_rate")


def sink_rate_interval(
    data: xr.Dataset, position: int, epsilon: float, stack: str | None, level: float, resamples: int, seed: int
) -> Interval:
    """See `Measurement.sink_rate_interval`."""
    rates = metrics.sample_rates(received(data, stack), epsilon)[:, column_of(data, position)]
    low, high = metrics.bootstrap(rates, level, resamples, seed)
    return Interval(float(metrics.nanmean(rates, 0)), float(low), float(high))


def layer_sink_rate(data: xr.Dataset, epsilon: float) -> xr.DataArray:
    """See `Measurement.layer_sink_rate`."""
    rates = metrics.nanmean(metrics.layer_rates(received(data), epsilon), 0)
    return xr.DataArray(rates, dims=("layer", "position"), coords=_coordinates(data, "layer", "position"))


def slot_rate(data: xr.Dataset, epsilon: float, paper_compatible: bool) -> float:
    """See `Measurement.slot_rate`."""
    slot = need(data, "slot_received", "SlotReceived").values
    if paper_compatible:
        slot = metrics.paper_slot(slot, data["tokens"].values)
    return float(metrics.sink_rate(slot[..., None], epsilon)[0])


def sweep(data: xr.Dataset, epsilons: Sequence[float]) -> xr.DataArray:
    """See `Measurement.sweep`."""
    by_length = need(data, "attention_received_by_length", "ReceivedByLength")
    rates = metrics.sweep(by_length.transpose("sample", "layer", "head", "length").values, epsilons)
    coordinates = {"epsilon": list(epsilons), "length": by_length["length"].values}
    return xr.DataArray(rates, dims=("epsilon", "length"), coords=coordinates).dropna("length", how="all")


def hidden_norm_ratio(data: xr.Dataset) -> xr.DataArray:
    """See `Measurement.hidden_norm_ratio`."""
    ratio = metrics.first_over_rest(_from_the_first(data, "hidden_norm", "HiddenNorms"))
    return xr.DataArray(metrics.nanmean(ratio, 0), dims="depth", coords=_coordinates(data, "depth"))


def value_norm_ratio(data: xr.Dataset) -> xr.DataArray:
    """See `Measurement.value_norm_ratio`."""
    ratio = metrics.first_over_rest(_from_the_first(data, "value_norm", "QueryKeyValueNorms"))
    mean = metrics.nanmean(metrics.nanmean(ratio, 2), 0)
    return xr.DataArray(mean, dims="layer", coords=_coordinates(data, "layer"))


def rate_at(data: xr.Dataset, epsilon: float, position: int = 0) -> Interval:
    """The sink rate of one position with its interval."""
    return sink_rate_interval(at(data, position), position, epsilon, None, 0.95, 1000, 0)


def stack_rates(data: xr.Dataset, epsilon: float, position: int = 0) -> dict[str, Interval]:
    """`rate_at` of each stack by itself, in the measurement's order: encoder, decoder, cross-attention, towers.

    One rate over all of them would mix layers that attend to different texts.
    """
    return {stack: rate_at(part, epsilon, position) for stack, part in stacks_apart(data).items()}


def stacks_apart(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """The dataset of each stack's layers, by the stack's name; depths and experts stay as they are."""
    stacks = dict.fromkeys(str(name) for name in data["stack"].values)
    if len(stacks) == 1:
        return dict.fromkeys(stacks, data)
    return {stack: data.isel(layer=layers_of(data, stack)) for stack in stacks}


def warn_if_short(data: xr.Dataset) -> None:
    """A `UserWarning` below 10 tokens, where a sink rate says little."""
    tokens = data["tokens"].values
    shortest = int(tokens[tokens > 0].min(initial=metrics.SHORT))
    if shortest < metrics.SHORT:
        warnings.warn(
            f"sink rates over {shortest} tokens say little: below {metrics.SHORT} tokens uniform attention itself "
            "gives the first one more than 0.3",
            UserWarning,
            stacklevel=4,  # who called the method of the measurement
        )


def _from_the_first(data: xr.Dataset, name: str, observer: str) -> np.ndarray:
    """A variable over positions that start at 0, as ratios of the first token need."""
    variable = need(data, name, observer)
    column_of(data, 0)
    return variable.values


def _coordinates(data: xr.Dataset, *dims: str) -> dict[str, Any]:
    return {str(name): value for name, value in data.coords.items() if value.dims and {*value.dims} <= {*dims}}
