"""Outliers of the residual stream, from each token's largest activation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from sinkscope.metrics.statistics import nanmean, quiet


@dataclass(frozen=True, eq=False)
class PeakRatios:
    """How far token-wise maxima lie from their median, per sample and depth; both are 1 where all are equal."""

    upper: Float[np.ndarray, "sample depth"]
    lower: Float[np.ndarray, "sample depth"]


def infinity_norms(hidden_max: Float[np.ndarray, "sample depth position"]) -> Float[np.ndarray, "depth"]:
    """‖x‖_∞ over the tokens and dimensions of a row, averaged over samples, per depth."""
    with quiet():
        return nanmean(np.nanmax(hidden_max, axis=2), 0)


def infinity_norm(hidden_max: Float[np.ndarray, "sample depth position"]) -> float:
    """The largest of `infinity_norms`: mean over samples, then maximum over depths [X16] (Bondarenko et al. 2023).

    They take the outputs of attention layers; here it is the residual stream.
    """
    with quiet():
        return float(np.nanmax(infinity_norms(hidden_max)))


def token_peak_ratios(hidden_max: Float[np.ndarray, "sample depth position"]) -> PeakRatios:
    """With M_t = max_c |h_tc|: upper = max_t M_t / median_t M_t, lower = median_t M_t / min_t M_t (PrefixQuant).

    A large upper ratio means tokens with massive activations, a large lower one tokens that are unusually small (of
    queries and keys, in the paper). Source: Chen et al. 2024. NaN where the denominator is 0.
    """
    with quiet(), np.errstate(divide="ignore", invalid="ignore"):
        median = np.nanmedian(hidden_max, axis=2)
        upper = np.nanmax(hidden_max, axis=2) / median
        lower = median / np.nanmin(hidden_max, axis=2)
    return PeakRatios(np.where(np.isfinite(upper), upper, np.nan), np.where(np.isfinite(lower), lower, np.nan))
