"""Sink rates, slot rates and norm ratios, from a measurement's dataset."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import xarray as xr
from jaxtyping import Float

from sinkscope.errors import unknown
from sinkscope.measurement import metrics
from sinkscope.measurement.metrics import Interval
from sinkscope.measurement.selection import (
    PAPER,
    PER_HEAD,
    VISIBLE,
    at,
    column_of,
    comparable_places,
    coordinates,
    denominator_of,
    layers_of,
    most_queries,
    need,
    paper_queries,
    uniform_received,
    visible_queries,
)
from sinkscope.statistics import share_bounds, share_interval

FEW_SAMPLES = 5  # fewer samples are called few


def received(
    data: xr.Dataset, stack: str | None = None, denominator: str = VISIBLE
) -> Float[np.ndarray, "sample layer head position"]:
    """`attention_received`, of the layers of one stack or of all.

    `denominator` "paper": Σ_t A[t, k] / (T − k) whatever the masks hide (/ T where earlier queries see k too), which
    older files always hold. Raises `InputError` for an unknown stack or denominator.
    """
    check_denominator(denominator)
    values = need(data, "attention_received", "AttentionReceived").transpose(*PER_HEAD).values
    if denominator == PAPER and denominator_of(data) == VISIBLE:
        with np.errstate(divide="ignore", invalid="ignore"):
            values = values * (visible_queries(data) / paper_queries(data))[:, :, None]
    if stack is None:
        return values
    if stack not in (stacks := [str(name) for name in data["stack"].values]):
        raise unknown("stack", stack, dict.fromkeys(stacks))
    return values[:, layers_of(data, stack)]


def check_denominator(denominator: str) -> None:
    """Raises `InputError` for an unknown denominator."""
    if denominator not in (VISIBLE, PAPER):
        raise unknown("denominator", denominator, (VISIBLE, PAPER))


def sink_rate_interval(
    data: xr.Dataset,
    position: int,
    epsilon: float,
    stack: str | None = None,
    level: float = 0.95,
    denominator: str = VISIBLE,
) -> Interval:
    """The interval of a sink rate in `data`. Arguments as in `Measurement.sink_rate_interval`."""
    rates = metrics.sample_rates(received(data, stack, denominator), epsilon)[:, column_of(data, position)]
    return percent_interval(rates, level)


def percent_interval(rates: Float[np.ndarray, "sample"], level: float = 0.95) -> Interval:
    """The mean of rates in percent over samples, with the interval of a share."""
    share = share_interval(rates / 100, level)
    return Interval(100 * share.value, 100 * share.low, 100 * share.high)


def percent_bounds(
    rates: Float[np.ndarray, "sample *shape"], level: float = 0.95
) -> tuple[Float[np.ndarray, "*shape"], Float[np.ndarray, "*shape"]]:
    """Lower and upper ends of `percent_interval`, for each column."""
    low, high = share_bounds(rates / 100, level)
    return 100 * low, 100 * high


def interval_words(low: float, high: float, samples: int, digits: int = 1) -> str:
    """An interval over samples in words: its ends, the number of samples, and whether that is few."""
    if samples < 2:
        return "one sample: no interval"
    few = ", which are few" if samples < FEW_SAMPLES else ""
    return f"95 % interval {low:.{digits}f} to {high:.{digits}f} over {samples} samples{few}"


def denominators_differ(data: xr.Dataset) -> bool:
    """Whether T − k differs by more than 1 % from the number of queries that see a key, at some compared key."""
    if denominator_of(data) == PAPER:
        return False
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = visible_queries(data) / paper_queries(data)
    return bool((np.abs(ratio - 1) > 0.01)[comparable_places(data)].any())


def rate_words(data: xr.Dataset, rate: float, epsilon: float, position: int, stack: str | None = None) -> str:
    """A sink rate in percent, and the paper's if the denominators differ.

    Args:
        data: The measurement it was computed from.
        rate: In percent.
        epsilon, position, stack: What the rate is of, as in `Measurement.sink_rate`.
    """
    if not denominators_differ(data):
        return f"{rate:.1f} %"
    paper = metrics.sink_rate(received(data, stack, PAPER), epsilon)[column_of(data, position)]
    return f"{rate:.1f} % of queries that see it; {paper:.1f} % by the paper's T − k"


def sweep(data: xr.Dataset, epsilons: Sequence[float], denominator: str = VISIBLE) -> xr.DataArray:
    """See `Measurement.sweep`."""
    check_denominator(denominator)
    by_length = need(data, "attention_received_by_length", "ReceivedByLength")
    if denominator == PAPER and denominator_of(data) == VISIBLE:
        by_length = by_length * need(data, "visible_share_by_length", "ReceivedByLength")
    rates = metrics.sweep(by_length.transpose("sample", "layer", "head", "length").values, epsilons)
    coordinates = {"epsilon": list(epsilons), "length": by_length["length"].values}
    return xr.DataArray(rates, dims=("epsilon", "length"), coords=coordinates).dropna("length", how="all")


def hidden_norm_ratio(data: xr.Dataset) -> xr.DataArray:
    """See `Measurement.hidden_norm_ratio`."""
    ratio = metrics.first_over_rest(_from_the_first(data, "hidden_norm", "HiddenNorms"))
    return xr.DataArray(metrics.nanmean(ratio, 0), dims="depth", coords=coordinates(data, "depth"))


def value_norm_ratio(data: xr.Dataset) -> xr.DataArray:
    """See `Measurement.value_norm_ratio`."""
    ratio = metrics.first_over_rest(_from_the_first(data, "value_norm", "QueryKeyValueNorms"))
    mean = metrics.nanmean(metrics.nanmean(ratio, 2), 0)
    return xr.DataArray(mean, dims="layer", coords=coordinates(data, "layer"))


def rate_at(data: xr.Dataset, epsilon: float, position: int = 0) -> Interval:
    """The sink rate of one position with its interval."""
    return sink_rate_interval(at(data, position), position, epsilon)


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
    """Warn (`UserWarning`) if uniform attention itself makes the first token a sink in all layers of most samples.

    Packed documents differ in length: a few short ones among them hardly change a rate.
    """
    tokens = data["tokens"].transpose("sample", "layer").values
    if "position" not in data.coords or 0 not in data["position"].values or not (tokens > 0).any():
        return
    uniform = np.where(tokens > 0, uniform_received(data)[..., column_of(data, 0)], np.nan)
    with metrics.quiet():
        least = np.nanmin(uniform, 1)
    if not 2 * (metrics.exceeds(least, metrics.EPSILON) == 1).sum() > np.isfinite(least).sum():
        return
    sample = int(np.nanargmax(least))
    layer = int(np.nanargmin(uniform[sample]))
    share = f"{uniform[sample, layer]:.2f}".removeprefix("0")
    seen = int(most_queries(data)[sample, layer])
    few = f", of which {seen} see it," if seen < tokens[sample, layer] else ""
    warnings.warn(
        f"sink rates say little on texts so short: uniform attention itself gives position 0 of "
        f"{tokens[sample, layer]} tokens{few} {share}; attention over uniform (`lift`) allows for that",
        UserWarning,
        stacklevel=3,  # the caller of the measurement's method
    )


def _from_the_first(data: xr.Dataset, name: str, observer: str) -> np.ndarray:
    """A variable over positions that start at 0, as ratios of the first token need."""
    variable = need(data, name, observer)
    column_of(data, 0)
    return variable.values
