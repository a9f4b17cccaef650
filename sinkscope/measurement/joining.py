"""Two measurements of one model as one: more texts later."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import xarray as xr

from sinkscope.errors import InputError
from sinkscope.measurement.selection import record_of

SAME = ("model", "family", "class", "dtype", "metric_weights", "observers", "denominator", "not_measured")
EMPTY = {"token_id": -1}


def joined(first: xr.Dataset, second: xr.Dataset) -> xr.Dataset:
    """The samples of both, the second's after the first's, as if they had been measured in one go.

    Rows that are shorter are filled as within a measurement: NaN, −1 for token ids, 0 for counts of queries. Raises
    `InputError` where model, observers or axes differ, and where something was kept of the first samples only.
    """
    mine, theirs = record_of(first), record_of(second)
    for name in SAME:
        if mine.get(name) != theirs.get(name):
            raise InputError(f"the two measurements differ in {name}: {mine.get(name)!r} and {theirs.get(name)!r}")
    for data in (first, second):
        if "kept" in data.dims:
            raise InputError("maps and key vectors are kept of a measurement's first samples alone: measure again")
    for name in ("layer_name", "depth_index"):
        if name in first.coords and not np.array_equal(first[name].values, second[name].values):
            raise InputError(f"the two measurements differ in {name}: that is another model")
    length = max(data.sizes.get("position", 0) for data in (first, second))
    parts = [_filled(data, length) for data in (first, second)]
    rows = int(first["row"].max()) + 1 if "row" in first.coords else first.sizes["sample"]
    parts[1] = parts[1].assign_coords(row=parts[1]["row"] + rows) if "row" in parts[1].coords else parts[1]
    combined = xr.concat(parts, "sample", data_vars="minimal", coords="minimal", compat="override", join="exact")
    return combined.assign_attrs(record=json.dumps(_record(mine, theirs)))


def _filled(data: xr.Dataset, length: int) -> xr.Dataset:
    """Along positions up to a length."""
    if data.sizes.get("position", length) == length:
        return data
    fill: dict[Any, Any] = {
        name: 0 if np.issubdtype(array.dtype, np.integer) else np.nan for name, array in data.data_vars.items()
    }
    return data.reindex(position=np.arange(length), fill_value=fill | EMPTY)


def _record(mine: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """The first's, with both inputs and all samples."""
    lengths = {"samples": mine["samples"] + theirs["samples"], "tokens": max(mine["tokens"], theirs["tokens"])}
    inputs = [part for record in (mine, theirs) for part in record["input"].get("joined", [record["input"]])]
    first = {name: value for name, value in mine["input"].items() if name != "joined"}
    return mine | lengths | {"input": first | {"joined": inputs}}
