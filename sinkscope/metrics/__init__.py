"""Metrics as pure functions of stored statistics: thresholds live here, never in an observer."""

from sinkscope.metrics.bands import DarkShares, dark_shares
from sinkscope.metrics.experts import super_experts
from sinkscope.metrics.geometry import (
    KeyManifold,
    Projection,
    SecondarySinks,
    key_manifold,
    principal_angles,
    principal_components,
    secondary_sinks,
    separation,
)
from sinkscope.metrics.massive import is_massive, massive_entries, massive_lives
from sinkscope.metrics.mechanism import (
    AngleSplit,
    angle_split,
    dormant,
    head_kinds,
    mean_elsewhere,
    value_drain_correlation,
    value_ratio,
)
from sinkscope.metrics.outliers import PeakRatios, infinity_norm, infinity_norms, token_peak_ratios
from sinkscope.metrics.patches import artefact_patches, patch_table
from sinkscope.metrics.rates import (
    SHORT,
    check_epsilon,
    exceeds,
    first_over_rest,
    index_of,
    layer_rates,
    paper_slot,
    sample_rates,
    sink_rate,
)
from sinkscope.metrics.statistics import Interval, bootstrap, nanmean, quantiles, quiet, resampled_means
from sinkscope.metrics.sweep import EPSILONS, boost, mass_on_first, sweep
from sinkscope.metrics.tokens import comparable, sinks_by_kind, sinks_by_token, token_kind, token_rates
from sinkscope.ranks import rank_correlation

__all__ = [
    "EPSILONS",
    "SHORT",
    "AngleSplit",
    "DarkShares",
    "Interval",
    "KeyManifold",
    "PeakRatios",
    "Projection",
    "SecondarySinks",
    "angle_split",
    "artefact_patches",
    "boost",
    "bootstrap",
    "check_epsilon",
    "comparable",
    "dark_shares",
    "dormant",
    "exceeds",
    "first_over_rest",
    "head_kinds",
    "index_of",
    "infinity_norm",
    "infinity_norms",
    "is_massive",
    "key_manifold",
    "layer_rates",
    "mass_on_first",
    "massive_entries",
    "massive_lives",
    "mean_elsewhere",
    "nanmean",
    "paper_slot",
    "patch_table",
    "principal_angles",
    "principal_components",
    "quantiles",
    "quiet",
    "rank_correlation",
    "resampled_means",
    "sample_rates",
    "secondary_sinks",
    "separation",
    "sink_rate",
    "sinks_by_kind",
    "sinks_by_token",
    "super_experts",
    "sweep",
    "token_kind",
    "token_peak_ratios",
    "token_rates",
    "value_drain_correlation",
    "value_ratio",
]
