"""The strongest position of a measurement, and sink rates where positions can be compared.

Tables, pages, training logs and experiments all use the one rule `metrics.strongest`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Bool, Float

from sinkscope.measurement import metrics
from sinkscope.measurement.rates import percent_bounds, received
from sinkscope.measurement.selection import (
    PAPER,
    VISIBLE,
    comparable_places,
    paper_queries,
    query_counts,
    visible_queries,
)


@dataclass(frozen=True)
class Strongest:
    """A position, counted from 0, and its sink rate in percent."""

    position: int
    rate: float


@dataclass(frozen=True, eq=False)
class _Compared:
    """Rates and attention of each layer's positions; NaN at those that are not `comparable_places`."""

    data: xr.Dataset
    epsilon: float
    denominator: str = VISIBLE

    @cached_property
    def counted(self) -> Bool[np.ndarray, "sample layer position"]:
        if self.denominator == PAPER:
            return metrics.comparable(paper_queries(self.data), query_counts(self.data))
        return comparable_places(self.data)

    @cached_property
    def rates(self) -> Float[np.ndarray, "sample layer position"]:
        return np.where(
            self.counted, metrics.layer_rates(received(self.data, denominator=self.denominator), self.epsilon), np.nan
        )

    @cached_property
    def mass(self) -> Float[np.ndarray, "sample layer position"]:
        """A position's share of all attention in a layer: Σ_t A[t, k] over the number of queries."""
        with np.errstate(divide="ignore", invalid="ignore"):
            seeing = visible_queries(self.data) / query_counts(self.data)[..., None]
        return np.where(self.counted, metrics.nanmean(received(self.data), 2) * seeing, np.nan)

    def best(self, rates: Float[np.ndarray, "position"], mass: Float[np.ndarray, "position"]) -> Strongest | None:
        index = metrics.strongest(rates, mass)
        return None if index is None else Strongest(int(self.data["position"].values[index]), float(rates[index]))


def comparable_rates(data: xr.Dataset, epsilon: float) -> Float[np.ndarray, "position"]:
    """Sink rate per position in percent; NaN if too few queries see the position in every sample
    (`metrics.comparable`).

    Layers and samples in which too few queries see a position do not count there.
    """
    return _over_all(_Compared(data, epsilon).rates)


def strongest_position(data: xr.Dataset, epsilon: float, denominator: str = VISIBLE) -> Strongest | None:
    """The position with the highest of `comparable_rates`, and that rate; ties as in `metrics.strongest`.

    None if no measured position is seen by more than half of the queries, or all are NaN.
    """
    compared = _Compared(data, epsilon, denominator)
    return compared.best(_over_all(compared.rates), _over_all(compared.mass))


def strongest_by_layer(data: xr.Dataset, epsilon: float) -> list[Strongest | None]:
    """The same for each layer, in order."""
    compared = _Compared(data, epsilon)
    rates, mass = metrics.nanmean(compared.rates, 0), metrics.nanmean(compared.mass, 0)
    return [compared.best(*layer) for layer in zip(rates, mass, strict=True)]


def rates_by_position(data: xr.Dataset, epsilon: float) -> pd.DataFrame:
    """One row per position: `position, sink_rate, low, high, counted, strongest`.

    Rates in percent over all samples and layers, with 95 % intervals over samples; `counted`: whether enough
    queries see it in some layer (`metrics.comparable`); `strongest`: True at
    `strongest_position`, where its rate is not 0. Raises `InputError` for an epsilon outside (0, 1).
    """
    rates = metrics.sample_rates(received(data), epsilon)
    low, high = percent_bounds(rates)
    positions, strongest = data["position"].values, strongest_position(data, epsilon)
    return pd.DataFrame(
        {
            "position": positions,
            "sink_rate": metrics.nanmean(rates, 0),
            "low": low,
            "high": high,
            "counted": ~np.isnan(comparable_rates(data, epsilon)),
            "strongest": (positions == strongest.position)
            if strongest and strongest.rate > 0
            else np.full(len(positions), False),
        }
    )


def _over_all(values: Float[np.ndarray, "sample layer position"]) -> Float[np.ndarray, "position"]:
    """Mean over layers, then over samples, as a sink rate is averaged."""
    return metrics.nanmean(metrics.nanmean(values, 1), 0)
