"""`ss.compare`: differences between measurements, saved results, models and checkpoints."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from sinkscope.errors import InputError
from sinkscope.measurement import metrics
from sinkscope.measurement.measurement import Measurement
from sinkscope.measurement.measuring import measure
from sinkscope.measurement.selection import (
    VISIBLE,
    column_of,
    denominator_of,
    need,
    paper_queries,
    visible_queries,
)
from sinkscope.names import shortened
from sinkscope.statistics import difference_interval, mean_bounds

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


PLACE = ("stack", "layer", "head")
THIRDS = ("first", "middle", "last")
SAME = 1e-6  # relative: fp32 rounding of equal denominators


@dataclass(frozen=True, eq=False)
class Comparison:
    """The differences between two measurements, for everything that both have.

    `paired`: both saw the same token ids, so differences are taken sample by sample; else Welch's interval. `names`:
    the labels of the two.
    """

    first: Measurement
    second: Measurement
    names: tuple[str, str] = ("first", "second")

    @property
    def paired(self) -> bool:
        digests = [measurement.record["input"].get("sha256") for measurement in (self.first, self.second)]
        return digests[0] is not None and digests[0] == digests[1]

    def __post_init__(self) -> None:
        _check_denominators(self.first, self.second)

    def table(self, epsilon: float = 0.3, *, level: float = 0.95) -> pd.DataFrame:
        """One row per number that both have: first, second, second − first, and its interval (Student's t).

        A single sample has no interval.
        """
        import pandas as pd

        left, right = _numbers(self.first, epsilon), _numbers(self.second, epsilon)
        rows = []
        for name in (name for name in left if name in right):
            low, high = self._bounds(left[name], right[name], level)
            means = [float(metrics.nanmean(values, 0)) for values in (left[name], right[name])]
            rows.append((name, *means, means[1] - means[0], float(low), float(high)))
        return pd.DataFrame(rows, columns=["quantity", "first", "second", "difference", "low", "high"])

    def heads(self, position: int = 0, *, level: float = 0.95) -> pd.DataFrame:
        """One row per head: the attention that a position receives, first, second, second − first with its interval.

        Columns: stack, layer, head, first, second, difference, low, high, differs (the interval excludes 0; at level
        0.95, one in twenty equal heads does). Means over samples of alpha_k (Gu et al. 2025). Raises `InputError` if
        layers or heads of the two do not match, and for a position that was not measured.
        """
        import pandas as pd

        if not self.has_partners:
            raise InputError(f"the heads of {self.names[0]} and {self.names[1]} have no partners: {self._sizes()}")
        left, right = (_alpha(each, position) for each in (self.first, self.second))
        low, high = self._bounds(left, right, level)
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
        from sinkscope.measurement.figures import head_differences

        return head_differences(self.heads(position), position, self.names)

    def to_json(self, epsilon: float = 0.3, position: int = 0) -> dict[str, Any]:
        """The tables as JSON-able data; `heads` is None if heads do not match."""
        heads = self.heads(position) if self.has_partners else None
        result = {"names": list(self.names), "paired": self.paired, "epsilon": epsilon, "position": position}
        tables = {"table": self.table(epsilon), "heads": heads}
        rows = {name: None if frame is None else frame.to_json(orient="records") for name, frame in tables.items()}
        return result | {name: None if text is None else json.loads(text) for name, text in rows.items()}

    def _bounds(self, left: np.ndarray, right: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
        """Ends of the interval of mean(`right`) − mean(`left`), for each column."""
        if self.paired and len(left) == len(right):
            return mean_bounds(right - left, level)
        ends = np.full((2, *left.shape[1:]), np.nan)
        for place in np.ndindex(left.shape[1:]):
            interval = difference_interval(left[:, *place], right[:, *place], level)
            ends[:, *place] = interval.low, interval.high
        return ends[0], ends[1]

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
    """Several measurements, each compared with the first."""

    parts: tuple[Comparison, ...]

    def __iter__(self) -> Iterator[Comparison]:
        return iter(self.parts)

    def table(self, epsilon: float = 0.3) -> pd.DataFrame:
        """The tables of all parts, with the second's name in the column `of`."""
        return _joined([(part, part.table(epsilon)) for part in self.parts])

    def heads(self, position: int = 0) -> pd.DataFrame:
        """The head tables of all parts, likewise."""
        return _joined([(part, part.heads(position)) for part in self.parts])

    def to_json(self, epsilon: float = 0.3, position: int = 0) -> dict[str, Any]:
        """All parts as JSON-able data."""
        return {"comparisons": [part.to_json(epsilon, position) for part in self.parts]}

    def _repr_html_(self) -> str:
        return self.table().to_html(index=False, float_format=lambda number: f"{number:.3f}", border=0, na_rep="–")


def side_by_side(
    first: Measurement, second: Measurement, *more: Measurement, names: tuple[str, ...] | None = None
) -> Comparison | Comparisons:
    """Compare measurements; `.table()` and `.heads()` have the differences with their intervals.

    More than two are each compared with the first. Raises `InputError` if the numbers of names and measurements differ,
    or if one is divided by T − k (an older file), the other by the queries that see a key, and these differ.
    """
    sides = (first, second, *more)
    if names is None:
        names = ("first", "second") if not more else ("first", *(f"other {n}" for n in range(1, len(sides))))
    if len(names) != len(sides):
        raise InputError(f"{len(sides)} measurements have {len(names)} names")
    parts = tuple(Comparison(first, other, (names[0], name)) for other, name in zip(sides[1:], names[1:], strict=True))
    return parts[0] if len(parts) == 1 else Comparisons(parts)


def _check_denominators(first: Measurement, second: Measurement) -> None:
    """Raises `InputError` if attention received has different denominators."""
    pair = [each.data for each in (first, second) if "attention_received" in each.data]
    if len({denominator_of(data) for data in pair}) < 2:
        return
    newer = next(data for data in pair if denominator_of(data) == VISIBLE)
    with metrics.quiet(), np.errstate(divide="ignore", invalid="ignore"):
        ratio = visible_queries(newer) / paper_queries(newer)
    if bool((np.abs(ratio - 1) > SAME).any()):
        raise InputError(
            "one measurement divides attention received by T − k (a file of before), the other by the queries that see "
            "a key, and under these masks (windows, packed documents, prefixes) they differ: measure the older one anew"
        )


def _joined(frames: list[tuple[Comparison, pd.DataFrame]]) -> pd.DataFrame:
    import pandas as pd

    return pd.concat([frame.assign(of=part.names[1]) for part, frame in frames], ignore_index=True)


def _alpha(measurement: Measurement, position: int) -> np.ndarray:
    """(sample, layer, head)."""
    variable = need(measurement.data, "attention_received", "AttentionReceived")
    return variable.transpose("sample", "layer", "head", "position").values[..., column_of(measurement.data, position)]


def _by_layer(data: Any, epsilon: float) -> dict[str, np.ndarray]:
    """The sink rate in percent at position 0 in each third of the layers, for models of any depth."""
    rates = metrics.layer_rates(data["attention_received"].values, epsilon)[:, :, 0]
    if rates.shape[1] < len(THIRDS) or 0 not in data["position"].values[:1]:
        return {}
    parts = np.array_split(rates, len(THIRDS), axis=1)
    return {
        f"sink rate at position 0, {third} third of layers, %": metrics.nanmean(part, 1)
        for third, part in zip(THIRDS, parts, strict=True)
    }


def _numbers(measurement: Measurement, epsilon: float) -> dict[str, np.ndarray]:
    """One value per sample for each quantity that the measurement has."""
    data = measurement.data
    numbers: dict[str, np.ndarray] = {}
    if "attention_received" in data:
        rates = metrics.sample_rates(data["attention_received"].values, epsilon)
        for column, position in enumerate(data["position"].values.tolist()[:8]):
            numbers[f"sink rate at position {position}, %"] = rates[:, column]
        numbers |= _by_layer(data, epsilon)
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
    if "key_norm" in data:
        ratio = metrics.first_over_rest(data["key_norm"].values)
        numbers["mean key-norm ratio"] = metrics.nanmean(metrics.nanmean(ratio, 2), 1)
    return numbers


SAVED = "measurement.nc"
READ = ("inputs", "texts")


def compare(
    first: Measurement | nn.Module | str | Path,
    second: Measurement | nn.Module | str | Path,
    *more: Measurement | nn.Module | str | Path,
    names: tuple[str, ...] | list[str] | None = None,
    **measuring: Any,
) -> Comparison | Comparisons:
    """Compare two things, or several with the first: `.table()`, `.heads(position)`, `.plot(position)`.

    Each is a `Measurement`, the file of a saved one, a folder that `sinkscope measure` wrote, or a model: an object, a
    folder (a checkpoint), a hub id or a shipped name. Models are measured on what `inputs` or `texts` give, with the
    other options of `measure`. Samples are paired if both saw the same token ids, as models with one tokenizer do.
    Raises `InputError` for models without inputs, for inputs if nothing is left to measure, and as `measure` and `load`
    do.
    """
    sides = (first, second, *more)
    stored = [saved(each) for each in sides]
    reads = any(measuring.get(name) is not None for name in READ)
    if all(each is not None for each in stored) and measuring:
        raise InputError(f"everything was measured already: {', '.join(sorted(measuring))} would change nothing")
    if not all(each is not None for each in stored) and not reads:
        missing = next(label(each) for each, one in zip(sides, stored, strict=True) if one is None)
        raise InputError(f"'{missing}' is to be measured: pass inputs=… or texts=…, which all models then read")
    measured = [one or measure(each, **measuring) for each, one in zip(sides, stored, strict=True)]  # type: ignore[arg-type]
    called = tuple(names) if names is not None else distinct([label(each) for each in sides])
    return side_by_side(*measured, names=called)


def saved(thing: object) -> Measurement | None:
    """A measurement, or the one saved there; None if it must be measured first."""
    if isinstance(thing, Measurement):
        return thing
    if not isinstance(thing, str | Path):
        return None
    path = Path(thing).expanduser()
    if path.suffix == ".nc":
        return Measurement.load(path)
    return Measurement.load(path / SAVED) if (path / SAVED).is_file() else None


def label(thing: object) -> str:
    """The label of a thing in a table."""
    if isinstance(thing, str | Path):
        return str(thing)
    if isinstance(thing, Measurement):
        return str(thing.record["model"])
    return str(getattr(getattr(thing, "config", None), "name_or_path", "") or type(thing).__name__)


def distinct(labels: list[str]) -> tuple[str, ...]:
    """The labels: paths shortened as far as they stay distinct, numbered if they repeat."""
    labels = list(shortened(labels))
    return tuple(
        text if labels.count(text) == 1 else f"{text} ({labels[: place + 1].count(text)})"
        for place, text in enumerate(labels)
    )
