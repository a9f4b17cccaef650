"""Two measurements side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sinkscope import metrics
from sinkscope.measurements.measurement import Measurement

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Comparison:
    """What two measurements share, and by how much they differ.

    `paired`: both saw the same token ids, so that samples are drawn together in the bootstrap; else independently.
    """

    first: Measurement
    second: Measurement

    @property
    def paired(self) -> bool:
        digests = [measurement.record["input"].get("sha256") for measurement in (self.first, self.second)]
        return digests[0] is not None and digests[0] == digests[1]

    def table(self, epsilon: float = 0.3, *, level: float = 0.95, resamples: int = 1000, seed: int = 0) -> pd.DataFrame:
        """A row per number that both have: first, second, second − first, and the difference's bootstrap interval."""
        import pandas as pd

        left, right = _numbers(self.first, epsilon), _numbers(self.second, epsilon)
        rows = []
        for name in (name for name in left if name in right):
            draws = [
                metrics.resampled_means(values, resamples, seed + shift)
                for values, shift in ((left[name], 0), (right[name], 0 if self.paired else 1))
            ]
            low, high = metrics.quantiles(draws[1] - draws[0], level)
            means = [float(metrics.nanmean(values, 0)) for values in (left[name], right[name])]
            rows.append((name, *means, means[1] - means[0], float(low), float(high)))
        return pd.DataFrame(rows, columns=["quantity", "first", "second", "difference", "low", "high"])

    def _repr_html_(self) -> str:
        return self.table().to_html(index=False, float_format=lambda number: f"{number:.3f}", border=0, na_rep="–")


def compare(first: Measurement, second: Measurement) -> Comparison:
    """Put two measurements side by side; `.table()` has the differences with their intervals."""
    return Comparison(first, second)


def _numbers(measurement: Measurement, epsilon: float) -> dict[str, np.ndarray]:
    """One value per sample for each quantity that the measurement has."""
    data = measurement.data
    numbers: dict[str, np.ndarray] = {}
    if "attention_received" in data:
        rates = metrics.sample_rates(data["attention_received"].values, epsilon)
        for column, position in enumerate(data["position"].values.tolist()[:8]):
            numbers[f"sink rate at position {position}, %"] = rates[:, column]
    if "slot_received" in data:
        slot = data["slot_received"].values
        numbers["slot rate, %"] = metrics.sample_rates(slot[..., None], epsilon)[:, 0]
    if "hidden_norm" in data:
        ratio = metrics.first_over_rest(data["hidden_norm"].values)
        with metrics.quiet():
            numbers["largest hidden-norm ratio"] = np.nanmax(ratio, axis=1)
    if "value_norm" in data:
        ratio = metrics.first_over_rest(data["value_norm"].values)
        numbers["mean value-norm ratio"] = metrics.nanmean(metrics.nanmean(ratio, 2), 1)
    return numbers
