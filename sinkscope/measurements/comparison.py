"""Measurements side by side."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sinkscope import metrics
from sinkscope.errors import InputError
from sinkscope.measurements.measurement import Measurement
from sinkscope.measurements.selection import column_of, need

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

PLACE = ("stack", "layer", "head")


@dataclass(frozen=True, eq=False)
class Comparison:
    """What two measurements share, and by how much they differ.

    `paired`: both saw the same token ids, so that samples are drawn together in the bootstrap; else independently.
    `names`: what the two are called.
    """

    first: Measurement
    second: Measurement
    names: tuple[str, str] = ("first", "second")

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
            low, high = self._interval(left[name], right[name], level, resamples, seed)
            means = [float(metrics.nanmean(values, 0)) for values in (left[name], right[name])]
            rows.append((name, *means, means[1] - means[0], float(low), float(high)))
        return pd.DataFrame(rows, columns=["quantity", "first", "second", "difference", "low", "high"])

    def heads(self, position: int = 0, *, level: float = 0.95, resamples: int = 1000, seed: int = 0) -> pd.DataFrame:
        """A row per head: the attention that a position receives, first, second, second − first with its interval.

        Columns: stack, layer, head, first, second, difference, low, high, differs (the interval excludes 0: of heads
        that do not differ, one in twenty does so at level 0.95). Means over samples of alpha_k (Gu et al. 2025),
        resampled together where the two are `paired`. Raises `InputError` where the two have other layers or heads, so
        that no head has a partner, and for a position that was not measured.
        """
        import pandas as pd

        if not self.has_partners:
            raise InputError(f"the heads of {self.names[0]} and {self.names[1]} have no partners: {self._sizes()}")
        left, right = (_alpha(each, position) for each in (self.first, self.second))
        low, high = self._interval(left, right, level, resamples, seed)
        means = [metrics.nanmean(values, 0) for values in (left, right)]
        data = self.first.data
        rows = []
        for layer, head in np.ndindex(means[0].shape):
            values = [float(part[layer, head]) for part in (*means, means[1] - means[0], low, high)]
            if not math.isnan(values[2]):
                place = (str(data["stack"].values[layer]), int(data["layer_index"].values[layer]), head)
                rows.append((*place, *values, bool(values[3] > 0 or values[4] < 0)))
        return pd.DataFrame(rows, columns=[*PLACE, "first", "second", "difference", "low", "high", "differs"])

    @property
    def has_partners(self) -> bool:
        """Whether the two have the same layers and as many heads."""
        if any("attention_received" not in each.data for each in (self.first, self.second)):
            return False
        return self._places(self.first) == self._places(self.second)

    def plot(self, position: int = 0) -> go.Figure:
        """Map of `heads`: second − first, per layer and head, in percentage points of the attention received."""
        from sinkscope.measurements.figures import head_differences

        return head_differences(self.heads(position), position, self.names)

    def to_json(self, epsilon: float = 0.3, position: int = 0) -> dict[str, Any]:
        """The tables as JSON-able data; `heads` is None where heads have no partners."""
        heads = self.heads(position) if self.has_partners else None
        found = {"names": list(self.names), "paired": self.paired, "epsilon": epsilon, "position": position}
        tables = {"table": self.table(epsilon), "heads": heads}
        rows = {name: None if frame is None else frame.to_json(orient="records") for name, frame in tables.items()}
        return found | {name: None if text is None else json.loads(text) for name, text in rows.items()}

    def _interval(
        self, left: np.ndarray, right: np.ndarray, level: float, resamples: int, seed: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Bootstrap interval of the mean of `right` less that of `left`."""
        shift = 0 if self.paired else 1
        drawn = [metrics.resampled_means(values, resamples, seed + by) for values, by in ((left, 0), (right, shift))]
        return metrics.quantiles(drawn[1] - drawn[0], level)

    def _places(self, measurement: Measurement) -> list[Any]:
        data = measurement.data
        shape = need(data, "attention_received").transpose("sample", "layer", "head", "position").shape
        return [*zip(data["stack"].values.tolist(), data["layer_index"].values.tolist(), strict=True), shape[2]]

    def _sizes(self) -> str:
        sizes = [
            f"{each.data.sizes.get('layer', 0)} × {each.data.sizes.get('head', 0)}"
            for each in (self.first, self.second)
        ]
        return f"{sizes[0]} and {sizes[1]} (layers × heads)"

    def _repr_html_(self) -> str:
        return self.table().to_html(index=False, float_format=lambda number: f"{number:.3f}", border=0, na_rep="–")


@dataclass(frozen=True, eq=False)
class Comparisons:
    """Several measurements, each beside the first."""

    parts: tuple[Comparison, ...]

    def __iter__(self) -> Iterator[Comparison]:
        return iter(self.parts)

    def table(self, epsilon: float = 0.3) -> pd.DataFrame:
        """The tables of all parts, with the second's name in the column `of`."""
        return _joined([(part, part.table(epsilon)) for part in self.parts])

    def heads(self, position: int = 0) -> pd.DataFrame:
        """The heads of all parts, likewise."""
        return _joined([(part, part.heads(position)) for part in self.parts])

    def to_json(self, epsilon: float = 0.3, position: int = 0) -> dict[str, Any]:
        """All parts as JSON-able data."""
        return {"comparisons": [part.to_json(epsilon, position) for part in self.parts]}

    def _repr_html_(self) -> str:
        return self.table().to_html(index=False, float_format=lambda number: f"{number:.3f}", border=0, na_rep="–")


def compare(
    first: Measurement, second: Measurement, *more: Measurement, names: tuple[str, ...] | None = None
) -> Comparison | Comparisons:
    """Put measurements side by side; `.table()` and `.heads()` have the differences with their intervals.

    Of more than two, each beside the first. Raises `InputError` where there are not as many names as measurements.
    """
    given = (first, second, *more)
    if names is None:
        names = ("first", "second") if not more else ("first", *(f"other {n}" for n in range(1, len(given))))
    if len(names) != len(given):
        raise InputError(f"{len(given)} measurements have {len(names)} names")
    parts = tuple(Comparison(first, other, (names[0], name)) for other, name in zip(given[1:], names[1:], strict=True))
    return parts[0] if len(parts) == 1 else Comparisons(parts)


def _joined(frames: list[tuple[Comparison, pd.DataFrame]]) -> pd.DataFrame:
    import pandas as pd

    return pd.concat([frame.assign(of=part.names[1]) for part, frame in frames], ignore_index=True)


def _alpha(measurement: Measurement, position: int) -> np.ndarray:
    """(sample, layer, head)."""
    found = need(measurement.data, "attention_received", "AttentionReceived")
    return found.transpose("sample", "layer", "head", "position").values[..., column_of(measurement.data, position)]


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
