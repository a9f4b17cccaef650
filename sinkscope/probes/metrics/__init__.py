"""Metrics as pure functions of stored statistics: thresholds live here, never in an observer."""

from sinkscope.probes.metrics.rates import (
    SHORT,
    check_epsilon,
    exceeds,
    first_over_rest,
    layer_rates,
    paper_slot,
    sample_rates,
    sink_rate,
)
from sinkscope.probes.metrics.statistics import Interval, bootstrap, nanmean, quantiles, quiet, resampled_means

__all__ = [
    "SHORT",
    "Interval",
    "bootstrap",
    "check_epsilon",
    "exceeds",
    "first_over_rest",
    "layer_rates",
    "nanmean",
    "paper_slot",
    "quantiles",
    "quiet",
    "resampled_means",
    "sample_rates",
    "sink_rate",
]
