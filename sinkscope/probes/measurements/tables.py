"""A measurement as tables and as plain data."""

from __future__ import annotations

import html as markup
import math
from typing import Any

import numpy as np
import pandas as pd

from sinkscope.probes import metrics
from sinkscope.probes.measurements.measurement import Measurement

DIMS = ("sample", "layer", "head", "position", "depth")


def layer_table(measurement: Measurement, epsilon: float) -> pd.DataFrame:
    """See `Measurement.table`. The hidden-norm ratio of a row is that of the block's output, by running number."""
    data = measurement.data
    table = pd.DataFrame({"layer": data["layer_index"].values, "stack": [str(name) for name in data["stack"].values]})
    if "attention_received" in data:
        table = table.join(_rates(measurement, epsilon))
    if "hidden_norm" in data:
        table["hidden_norm_ratio"] = [_hidden_ratio(measurement, row) for row in table.itertuples()]
    if "value_norm" in data:
        table["value_norm_ratio"] = measurement.value_norm_ratio().values
    return table


def long_table(measurement: Measurement) -> pd.DataFrame:
    """See `Measurement.to_dataframe`."""
    parts = []
    for name, variable in measurement.data.data_vars.items():
        plain = variable.reset_coords(drop=True)
        part = plain.to_series().dropna().rename("value").reset_index()
        parts.append(part.assign(variable=name))
    table = pd.concat(parts, ignore_index=True)
    return table[["variable", *(dim for dim in DIMS if dim in table), "value"]]


def summary(measurement: Measurement, epsilon: float) -> dict[str, Any]:
    """See `Measurement.to_json`; the form is fixed."""
    data, record = measurement.data, measurement.record
    received, hidden, value = (name in data for name in ("attention_received", "hidden_norm", "value_norm"))
    overall = _by_position(measurement.sink_rate(epsilon)) if received else {}
    rates = measurement.layer_sink_rate(epsilon) if received else None
    layers = [
        {"layer": int(index), "stack": str(stack), "sink_rate": {} if rates is None else _by_position(rates[row])}
        for row, (index, stack) in enumerate(zip(data["layer_index"].values, data["stack"].values, strict=True))
    ]
    return {
        "model": record["model"],
        "input": record["input"],
        "tokens": record["tokens"],
        "samples": record["samples"],
        "epsilon": epsilon,
        "sink_rate": overall,
        "layers": layers,
        "hidden_norm_ratio": _numbers(measurement.hidden_norm_ratio().values) if hidden else [],
        "value_norm_ratio": _numbers(measurement.value_norm_ratio().values) if value else [],
    }


def html(measurement: Measurement) -> str:
    """The layer table under a line that says what was measured; text from models and users is escaped."""
    record = measurement.record
    line = f"{record['model']} ({record['family']}): {record['samples']} samples, up to {record['tokens']} tokens"
    table = measurement.table().to_html(index=False, float_format=lambda number: f"{number:.2f}", border=0, na_rep="–")
    return f"<p>{markup.escape(line)}</p>{table}"


def _rates(measurement: Measurement, epsilon: float) -> pd.DataFrame:
    received = measurement.data["attention_received"].values
    rates = metrics.layer_rates(received, epsilon)
    low, high = metrics.bootstrap(rates)
    mean = metrics.nanmean(rates, 0)
    positions = measurement.data["position"].values
    strongest = np.where(np.isnan(mean) | ~_comparable(measurement), -np.inf, mean).argmax(-1)
    rows = np.arange(len(mean))
    table = pd.DataFrame({"strongest_position": positions[strongest], "strongest_rate": mean[rows, strongest]})
    if 0 in positions:
        column = positions.tolist().index(0)
        first = {"sink_rate": mean[:, column], "low": low[:, column], "high": high[:, column]}
        table = pd.DataFrame(first).join(table)
    return table


def _comparable(measurement: Measurement) -> np.ndarray:
    """(layer, position): True where at least half of the queries can see the position.

    The last positions of a causal layer average over a few queries, and the very last is one token's attention to
    itself. Where no such position was measured, all count.
    """
    data = measurement.data
    early = data["position"].values < (int(data["tokens"].max()) + 1) // 2
    causal = np.array([str(stack) == "decoder" for stack in data["stack"].values])
    return np.where(causal[:, None] & early.any(), early, True)


def _hidden_ratio(measurement: Measurement, row: Any) -> float:
    """Ratio behind the block with the layer's number; cross-attention stands in the decoder's blocks."""
    ratio = measurement.hidden_norm_ratio()
    stack = "decoder" if row.stack == "cross" else row.stack
    place = (ratio["depth_stack"] == stack) & (ratio["depth_index"] == row.layer + 1)
    found = ratio.values[place.values]
    return float(found[0]) if len(found) else math.nan


def _by_position(rate: Any) -> dict[str, float | None]:
    return dict(zip(map(str, rate["position"].values.tolist()), _numbers(rate.values), strict=True))


def _numbers(values: np.ndarray) -> list[float | None]:
    return [None if math.isnan(value) else float(value) for value in values.tolist()]
