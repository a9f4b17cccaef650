"""Sink rates with their bootstrap intervals, from a measurement's dataset."""

from __future__ import annotations

import pandas as pd
import xarray as xr

from sinkscope.probes.metrics import Interval, bootstrap, nanmean, sample_rates
from sinkscope.report.layers import at, need


def rates_by_position(data: xr.Dataset, epsilon: float) -> pd.DataFrame:
    """`position, sink_rate, low, high`: percent, with 95 % intervals over samples; `InputError` as the metric."""
    received = need(data, "attention_received").transpose("sample", "layer", "head", "position")
    rates = sample_rates(received.values, epsilon)
    low, high = bootstrap(rates)
    positions = received["position"].values
    return pd.DataFrame({"position": positions, "sink_rate": nanmean(rates, 0), "low": low, "high": high})


def rate_at(data: xr.Dataset, epsilon: float, position: int = 0) -> Interval:
    """The sink rate of one position with its interval."""
    row = rates_by_position(at(data, position), epsilon).iloc[0]
    return Interval(row["sink_rate"], row["low"], row["high"])
