"""Statistics of the residual stream: massive activations, outliers, super experts, dark energy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int

from sinkscope.errors import InputError
from sinkscope.statistics import nanmean, quiet

if TYPE_CHECKING:
    import pandas as pd

ENTRY = ["position", "dimension"]


@dataclass(frozen=True, eq=False)
class PeakRatios:
    """How far token-wise maxima lie from their median, per sample and depth; both are 1 where all are equal."""

    upper: Float[np.ndarray, "sample depth"]
    lower: Float[np.ndarray, "sample depth"]


@dataclass(frozen=True, eq=False)
class DarkShares:
    """Share of ‖h‖² in the last band, per sample and depth: of the probed token, and the mean of all other tokens."""

    probed: Float[np.ndarray, "sample depth"]
    others: Float[np.ndarray, "sample depth"]


def is_massive(
    top: Float[np.ndarray, "*shape top"],
    median: Float[np.ndarray, "*shape"],
    *,
    magnitude: float = 100.0,
    ratio: float = 1000.0,
) -> Bool[np.ndarray, "*shape top"]:
    """|h| > magnitude and |h| ≥ ratio · median |h| of the row at that depth: both criteria of Sun et al. 2024.

    `top`: `hidden_top`, `median`: `hidden_median`. False where nothing was measured. Raises `InputError` for thresholds
    that are not positive.
    """
    if not (magnitude > 0 and ratio > 0):
        raise InputError(f"magnitude = {magnitude}, ratio = {ratio}: thresholds of massive activations are positive")
    with np.errstate(over="ignore"):  # an infinite bound is correct if activations nearly overflow
        return (np.abs(top) > magnitude) & (np.abs(top) >= ratio * median[..., None])


def massive_entries(
    top: Float[np.ndarray, "sample depth top"],
    position: Float[np.ndarray, "sample depth top"],
    dimension: Float[np.ndarray, "sample depth top"],
    median: Float[np.ndarray, "sample depth"],
    *,
    magnitude: float = 100.0,
    ratio: float = 1000.0,
) -> pd.DataFrame:
    """One row for each (depth, position, dimension) that is massive in any sample, most frequent and largest first.

    Columns: `depth` (index along that axis), `position`, `dimension`, `samples` (share of the samples measured at that
    depth in which it is massive, 0 to 1), `value` (signed mean over those), `over_median` (mean of |h| / median; inf
    where the median is 0). Per sample and depth, only entries kept by `MassiveActivations.top` are known: `truncated`
    tells where there may be more.

    Args:
        top: The largest entries of h, signed.
        position, dimension: Where each of them is.
        median: Of |h| over all entries of the sample at this depth.
        magnitude, ratio: The thresholds of `is_massive`.
    """
    import pandas as pd

    hits = is_massive(top, median, magnitude=magnitude, ratio=ratio)
    samples, depths, _ = np.nonzero(hits)
    with np.errstate(divide="ignore"):
        over_median = np.abs(top[hits]) / median[samples, depths]
    table = pd.DataFrame(
        {
            "depth": depths,
            "position": position[hits].astype(int),
            "dimension": dimension[hits].astype(int),
            "value": top[hits].astype(float),
            "over_median": over_median.astype(float),
        }
    )
    entries = table.groupby(["depth", *ENTRY], as_index=False).agg(
        samples=("value", "size"), value=("value", "mean"), over_median=("over_median", "mean")
    )
    measured = (~np.isnan(median)).sum(0)
    entries["samples"] = entries["samples"] / measured[entries["depth"].to_numpy(int)]
    order = entries.assign(size=entries["value"].abs()).sort_values(
        ["depth", "samples", "size"], ascending=[True, False, False], kind="stable"
    )
    return entries.loc[order.index, ["depth", *ENTRY, "samples", "value", "over_median"]].reset_index(drop=True)


def truncated(
    top: Float[np.ndarray, "sample depth top"],
    median: Float[np.ndarray, "sample depth"],
    *,
    magnitude: float = 100.0,
    ratio: float = 1000.0,
) -> Bool[np.ndarray, "sample depth"]:
    """True where all kept entries are massive, so that entries that were not kept may be massive as well."""
    return np.asarray(is_massive(top, median, magnitude=magnitude, ratio=ratio).all(-1))


def massive_lives(entries: pd.DataFrame, depths: int, least: float = 0.0) -> pd.DataFrame:
    """One row for each (position, dimension) of `massive_entries`: where it begins, peaks and ends, largest first.

    `entries`: of one stack of `depths` depths, of which those in more than `least` of the samples count. Columns:
    `position`, `dimension`, `onset` and `last` (first and last depth at which it is massive), `decay` (the depth after
    the last, NaN where it lasts to the end), `peak` (depth of the largest mean), and there `samples`, `value`,
    `over_median`.
    """
    counted = entries[entries["samples"] > least]
    spans = counted.groupby(ENTRY).agg(onset=("depth", "min"), last=("depth", "max"))
    sizes = counted["value"].abs().sort_values(ascending=False, kind="stable")
    # By size: the first row of each entry is its peak.
    peaks = counted.loc[sizes.index].drop_duplicates(ENTRY).rename(columns={"depth": "peak"})
    lives = peaks.join(spans, on=ENTRY)
    lives["decay"] = (lives["last"] + 1.0).where(lives["last"] + 1 < depths)
    columns = [*ENTRY, "onset", "last", "decay", "peak", "samples", "value", "over_median"]
    return lives[columns].reset_index(drop=True)


def infinity_norms(
    hidden_max: Float[np.ndarray, "sample depth position"], tokens: Int[np.ndarray, "sample depth"] | None = None
) -> Float[np.ndarray, "depth"]:
    """‖x‖_∞ over the tokens and dimensions of a row, averaged over samples, per depth.

    `tokens`: real ones of each row. A row with a NaN among them has no norm and does not count; without `tokens`, NaN
    marks what is after a row's last token.
    """
    with quiet():
        return nanmean(np.nanmax(_whole(hidden_max, tokens), axis=2), 0)


def infinity_norm(
    hidden_max: Float[np.ndarray, "sample depth position"], tokens: Int[np.ndarray, "sample depth"] | None = None
) -> float:
    """The largest of `infinity_norms`: mean over samples, then maximum over depths (Bondarenko et al. 2023).

    They use the outputs of attention layers; here it is the residual stream.
    """
    with quiet():
        return float(np.nanmax(infinity_norms(hidden_max, tokens)))


def token_peak_ratios(
    hidden_max: Float[np.ndarray, "sample depth position"], tokens: Int[np.ndarray, "sample depth"] | None = None
) -> PeakRatios:
    """With M_t = max_c |h_tc|: upper = max_t M_t / median_t M_t, lower = median_t M_t / min_t M_t (PrefixQuant).

    A large upper ratio means tokens with massive activations, a large lower one tokens that are unusually small (of
    queries and keys, in the paper). Source: Chen et al. 2024. An infinite token makes the upper one infinite. NaN where
    the denominator is 0 or both parts are infinite, and for rows in which one of their `tokens` real tokens is NaN;
    without `tokens`, NaN marks what is after a row's last token.
    """
    peaks = _whole(hidden_max, tokens)
    with quiet(), np.errstate(divide="ignore", invalid="ignore"):
        median, least = np.nanmedian(peaks, axis=2), np.nanmin(peaks, axis=2)
        upper, lower = np.nanmax(peaks, axis=2) / median, median / least
    return PeakRatios(np.where(median == 0, np.nan, upper), np.where(least == 0, np.nan, lower))


def _whole(
    values: Float[np.ndarray, "sample depth position"], tokens: Int[np.ndarray, "sample depth"] | None
) -> Float[np.ndarray, "sample depth position"]:
    """The rows whose real tokens all have a number; the others as NaN."""
    if tokens is None:
        return values
    real = np.arange(values.shape[2]) < tokens[..., None]
    return np.where((np.isnan(values) & real).any(2, keepdims=True), np.nan, values)


def super_experts(
    peaks: Float[np.ndarray, "sample moe_layer expert"],
    layers: list[str],
    *,
    quantile: float = 0.995,
    share: float = 0.1,
) -> pd.DataFrame:
    """Experts whose peak, the maximum over samples, reaches the `quantile` of all peaks and exceeds `share` of the top.

    Columns: layer (path of the expert module), expert, peak, mean (of the samples' peaks), times_median (over the
    model's median expert; with few experts the largest is always in the quantile, so check this). An infinite peak
    exceeds everything and is ignored as a reference for the others. Source: Su et al. 2025, "Unveiling Super Experts",
    whose rule has a third part, that the layer lies where massive activations form: `massive_entries` says where.
    """
    import pandas as pd

    with quiet():
        largest, mean = np.nanmax(peaks, 0), nanmean(peaks, 0)
        finite = np.where(np.isinf(largest), np.nan, largest)
        border, typical, top = np.nanquantile(finite, quantile), np.nanmedian(largest), np.nanmax(finite)
    chosen = np.argwhere(np.isinf(largest) | ((finite >= border) & (finite > share * top)))
    rows = [
        {
            "layer": layers[layer],
            "expert": int(expert),
            "peak": float(largest[layer, expert]),
            "mean": float(mean[layer, expert]),
            "times_median": float(largest[layer, expert] / typical),
        }
        for layer, expert in chosen
    ]
    columns = ["layer", "expert", "peak", "mean", "times_median"]
    return pd.DataFrame(rows, columns=columns).sort_values("peak", ascending=False, ignore_index=True)


def dark_shares(
    band_energy: Float[np.ndarray, "sample depth band"],
    band_energy_mean: Float[np.ndarray, "sample depth band"],
    tokens: Int[np.ndarray, "sample"],
) -> DarkShares:
    """The last band of a probed token against all other tokens.

    `band_energy`: at one probe position, `tokens`: real tokens T of each sample. The mean over all tokens includes the
    probed one, so the mean of the others is (T · mean − probed) / (T − 1); NaN with T < 2. Source: Cancedda 2024.
    """
    probed, mean = band_energy[..., -1], band_energy_mean[..., -1]
    count = np.where(tokens > 1, tokens, np.nan)[:, None]
    return DarkShares(probed, np.maximum((count * mean - probed) / (count - 1), 0))  # at least 0 despite rounding
