"""A measurement as tables and as plain data."""

from __future__ import annotations

import html as markup
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.errors import InputError, unknown
from sinkscope.files import write_text, writing
from sinkscope.measurement import metrics
from sinkscope.measurement.rates import (
    hidden_norm_ratio,
    percent_bounds,
    received,
    value_norm_ratio,
)
from sinkscope.measurement.selection import column_of, depth_labels, layer_labels, need, record_of
from sinkscope.measurement.slots import slot_mass, slot_mass_by_layer
from sinkscope.measurement.strongest import strongest_by_layer

FORMS = ("csv", "parquet")  # of tables as files
DIMS = ("sample", "layer", "head", "position", "depth")


def layer_table(data: xr.Dataset, epsilon: float) -> pd.DataFrame:
    """See `Measurement.table`. The hidden-norm ratio of a row is that of the block's output, by running number."""
    table = pd.DataFrame({"layer": data["layer_index"].values, "stack": [str(name) for name in data["stack"].values]})
    if "attention_received" in data:
        table = table.join(_rates(data, epsilon))
    if "hidden_norm" in data:
        ratio = hidden_norm_ratio(data)
        table["hidden_norm_ratio"] = [_after_block(ratio, row) for row in table.itertuples()]
    if "value_norm" in data:
        table["value_norm_ratio"] = value_norm_ratio(data).values
    if "slot_received" in data:
        table["slot_mass"] = slot_mass_by_layer(data)
    return table


def long_table(data: xr.Dataset) -> pd.DataFrame:
    """See `Measurement.to_dataframe`."""
    parts = []
    for name, variable in data.data_vars.items():
        plain = variable.reset_coords(drop=True)
        part = plain.to_series().dropna().rename("value").reset_index()
        parts.append(part.assign(variable=name))
    table = pd.concat(parts, ignore_index=True)
    return table[["variable", *(dim for dim in DIMS if dim in table), "value"]]


def summary(measured: Any, epsilon: float) -> dict[str, Any]:
    """See `Measurement.to_json`; the form is fixed."""
    record, data = measured.record, measured.data
    attention, hidden, value = (name in data for name in ("attention_received", "hidden_norm", "value_norm"))
    overall = _by_position(measured.sink_rate(epsilon)) if attention else {}
    rates = measured.layer_sink_rate(epsilon) if attention else None
    layers = [
        {"layer": int(index), "stack": str(stack), "sink_rate": {} if rates is None else _by_position(rates[row])}
        for row, (index, stack) in enumerate(zip(data["layer_index"].values, data["stack"].values, strict=True))
    ]
    stacks = dict.fromkeys(str(stack) for stack in data["stack"].values) if attention else {}
    return {
        "model": record["model"],
        "input": record["input"],
        "tokens": record["tokens"],
        "samples": record["samples"],
        "epsilon": epsilon,
        "sink_rate": overall,
        "layers": layers,
        "hidden_norm_ratio": _numbers(hidden_norm_ratio(data).values) if hidden else [],
        "value_norm_ratio": _numbers(value_norm_ratio(data).values) if value else [],
        "stacks": {stack: {"sink_rate": _by_position(measured.sink_rate(epsilon, stack=stack))} for stack in stacks},
        **({} if (slots := slot_mass(data, epsilon)) is None else {"slot": slots.to_json()}),
    }


def html(data: xr.Dataset) -> str:
    """The layer table under a line that names what was measured; text from models and users is escaped."""
    record = record_of(data)
    line = f"{record['model']} ({record['family']}): {record['samples']} samples, up to {record['tokens']} tokens"
    table = layer_table(data, 0.3).to_html(
        index=False, float_format=lambda number: f"{number:.2f}", border=0, na_rep="–"
    )
    return f"<p>{markup.escape(line)}</p>{table}"


def received_table(data: xr.Dataset, position: int = 0) -> pd.DataFrame:
    """Attention received by a position: one row per layer, one column per head."""
    received = need(data, "attention_received").mean("sample")
    grid = received.isel(position=column_of(data, position)).transpose("layer", "head")
    frame = pd.DataFrame(grid.values.round(4), columns=[f"head {head}" for head in grid["head"].values])
    frame.insert(0, "layer", layer_labels(data))
    return frame


def hidden_norm_table(data: xr.Dataset, position: int = 0) -> pd.DataFrame:
    """Hidden norm of a position, of the others, and their ratio, per depth."""
    column_of(data, position)
    norms = need(data, "hidden_norm").mean("sample")
    return _against_others(norms, position, "depth", depth_labels(data))


def hidden_map_table(data: xr.Dataset, first: int = 8) -> pd.DataFrame:
    """Hidden norm (L2, mean over samples) of the first positions, and mean and largest of all, per depth."""
    norms = need(data, "hidden_norm").mean("sample").transpose("depth", "position")
    columns = {str(position): norms.sel(position=position).values for position in norms["position"].values[:first]}
    summary = {"mean of all": norms.mean("position").values, "largest": norms.max("position").values}
    return pd.DataFrame({"depth": depth_labels(data), **columns, **summary})


def value_norm_table(data: xr.Dataset, position: int = 0) -> pd.DataFrame:
    """Value norm of a position, of the others, and their ratio, per layer."""
    column_of(data, position)
    norms = need(data, "value_norm").mean(["sample", "head"])
    return _against_others(norms, position, "layer", layer_labels(data))


def _rates(data: xr.Dataset, epsilon: float) -> pd.DataFrame:
    rates = metrics.layer_rates(received(data), epsilon)
    low, high = percent_bounds(rates)
    mean = metrics.nanmean(rates, 0)
    positions = data["position"].values
    strongest = strongest_by_layer(data, epsilon)
    table = pd.DataFrame(
        {
            "strongest_position": pd.array([best.position if best else None for best in strongest], "Int64"),
            "strongest_rate": [best.rate if best else math.nan for best in strongest],
        }
    )
    if 0 in positions:
        column = positions.tolist().index(0)
        first = {"sink_rate": mean[:, column], "low": low[:, column], "high": high[:, column]}
        table = pd.DataFrame(first).join(table)
    return table


def _after_block(ratio: xr.DataArray, row: Any) -> float:
    """The ratio after the layer's block; cross-attention is in the decoder's blocks."""
    stack = {"cross": "decoder", "queries_cross": "queries"}.get(row.stack, row.stack)
    place = (ratio["depth_stack"] == stack) & (ratio["depth_index"] == row.layer + 1)
    matches = ratio.values[place.values]
    return float(matches[0]) if len(matches) else math.nan


def _by_position(rate: Any) -> dict[str, float | None]:
    return dict(zip(map(str, rate["position"].values.tolist()), _numbers(rate.values), strict=True))


def _numbers(values: np.ndarray) -> list[float | None]:
    return [None if math.isnan(value) else float(value) for value in values.tolist()]


def _against_others(norms: xr.DataArray, position: int, kind: str, labels: list[str]) -> pd.DataFrame:
    chosen = norms.sel(position=position).values
    others = norms.where(norms["position"] != position).mean("position").values
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = chosen / others
    return pd.DataFrame({kind: labels, f"position {position}": chosen, "others": others, "ratio": ratio})


def every_table(measured: Any, epsilon: float) -> dict[str, pd.DataFrame]:
    """See `Measurement.tables`."""
    record, data = measured.record, measured.data
    wanted: dict[str, tuple[bool, Callable[[], pd.DataFrame]]] = {
        "table": (True, lambda: measured.table(epsilon)),
        "definitions": (True, lambda: measured.definitions(epsilon)),
        "heads": (True, lambda: measured.heads(epsilon)),
        "depths": ("hidden_norm" in data, measured.depths),
        "tokens": ("token_id" in data.coords, lambda: measured.sink_tokens(epsilon)),
        "kinds": ("token_text" in record and "token_id" in data.coords, lambda: measured.token_kinds(epsilon)),
        "first_tokens": (record["input"].get("kind") == "first-token", lambda: measured.first_tokens(epsilon)),
        "massive": ("hidden_top" in data, measured.massive_activations),
        "experts": ("expert_peak" in data, measured.super_experts),
    }
    if "attention_received" not in data:
        wanted = {name: entry for name, entry in wanted.items() if name in ("table", "depths", "massive", "experts")}
    return {name: table() for name, (has, table) in wanted.items() if has}


def write_tables(tables: Mapping[str, pd.DataFrame], folder: Path, form: str) -> list[Path]:
    """See `Measurement.write_tables`."""
    if form not in FORMS:
        raise unknown("form of tables", form, FORMS)
    if form == "parquet":
        require_parquet()
    written = []
    for name, frame in tables.items():
        target = folder / f"{name}.{form}"
        if form == "csv":
            write_text(target, frame.to_csv(index=False))
        else:
            with writing(target) as draft:
                frame.to_parquet(draft, index=False)
        written.append(target)
    return written


def require_parquet() -> None:
    """Raises `InputError` without a Parquet writer."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise InputError("writing Parquet needs the package datasets: pip install 'sinkscope[data]'") from error
