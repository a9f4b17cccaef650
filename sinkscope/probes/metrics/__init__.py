"""Metrics as pure functions of stored statistics: thresholds live here, never in an observer."""

from sinkscope.probes.metrics.bands import DarkShares, dark_shares
from sinkscope.probes.metrics.experts import super_experts
from sinkscope.probes.metrics.geometry import (
    Projection,
    SecondarySinks,
    principal_angles,
    principal_components,
    secondary_sinks,
    separation,
)
from sinkscope.probes.metrics.manifold import KeyManifold, key_manifold
from sinkscope.probes.metrics.massive import is_massive, massive_entries, massive_lives
from sinkscope.probes.metrics.mechanism import (
    AngleSplit,
    angle_split,
    dormant,
    head_kinds,
    value_drain_correlation,
    value_ratio,
)
from sinkscope.probes.metrics.outliers import PeakRatios, infinity_norm, infinity_norms, token_peak_ratios
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
from sinkscope.probes.metrics.sweep import EPSILONS, boost, mass_on_first, sweep
from sinkscope.probes.metrics.tokens import comparable, sinks_by_kind, sinks_by_token, token_kind, token_rates
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
    "infinity_norm",
    "infinity_norms",
    "is_massive",
    "key_manifold",
    "layer_rates",
    "mass_on_first",
    "massive_entries",
    "massive_lives",
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
