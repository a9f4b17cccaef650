"""Metrics as pure functions of stored statistics: thresholds live here, never in an observer."""

from sinkscope.probes.metrics.experts import super_experts
from sinkscope.probes.metrics.patches import artefact_patches, patch_table
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
from sinkscope.probes.metrics.tokens import comparable, sinks_by_kind, sinks_by_token, token_kind, token_rates

__all__ = [
    "SHORT",
    "Interval",
    "artefact_patches",
    "bootstrap",
    "check_epsilon",
    "comparable",
    "exceeds",
    "first_over_rest",
    "layer_rates",
    "nanmean",
    "paper_slot",
    "patch_table",
    "quantiles",
    "quiet",
    "resampled_means",
    "sample_rates",
    "sink_rate",
    "sinks_by_kind",
    "sinks_by_token",
    "super_experts",
    "token_kind",
    "token_rates",
]
