"""Two measurements of one model as one: more texts later."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import numpy as np
import xarray as xr

from sinkscope.errors import InputError
from sinkscope.measurement.selection import SHOWN, record_of

SAME = ("model", "family", "class", "dtype", "metric_weights", "observers", "denominator", "not_measured")
WEIGHTS = "weights_sha256"  # files of earlier versions have none
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
    if mine.get(WEIGHTS) != theirs.get(WEIGHTS) and WEIGHTS in mine and WEIGHTS in theirs:
        raise InputError(f"the two measurements are of two models with the name {mine['model']}: their weights differ")
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
    if "causal" in combined.coords:
        combined["causal"] = first["causal"] & second["causal"]
    record = _record(mine, theirs)
    record["input"] |= _first_ids(combined, record["input"])
    return combined.assign_attrs(record=json.dumps(record))


def _filled(data: xr.Dataset, length: int) -> xr.Dataset:
    """Along positions up to a length."""
    if data.sizes.get("position", length) == length:
        return data
    fill: dict[Any, Any] = {
        name: 0 if np.issubdtype(array.dtype, np.integer) else np.nan for name, array in data.data_vars.items()
    }
    return data.reindex(position=np.arange(length), fill_value=fill | EMPTY)


def _record(mine: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """The first's, with both inputs, all samples, and what either says of its tokens and of places without numbers."""
    merged = mine | {"samples": mine["samples"] + theirs["samples"], "tokens": max(mine["tokens"], theirs["tokens"])}
    for name in ("token_text", "token_bytes"):
        if name in mine or name in theirs:
            merged[name] = theirs.get(name, {}) | mine.get(name, {})
    if "special_tokens" in mine or "special_tokens" in theirs:
        merged["special_tokens"] = sorted({*mine.get("special_tokens", ()), *theirs.get("special_tokens", ())})
    broken = [record["non_finite"] for record in (mine, theirs) if "non_finite" in record]
    if broken:
        merged["non_finite"] = {
            "first": broken[0]["first"],
            "places": list(dict.fromkeys(place for part in broken for place in part["places"])),
            "samples": sum(part["samples"] for part in broken),
        }
    if "packed" in mine or "packed" in theirs:
        one, other = (_packed(record) for record in (mine, theirs))
        merged["packed"] = {**other, **one, **{name: one[name] + other[name] for name in ("rows", "documents")}}
    parts = [part for record in (mine, theirs) for part in record["input"].get("joined", [record["input"]])]
    digests = [part.get("sha256") for part in parts]
    kept = {name: value for name, value in mine["input"].items() if name not in ("joined", "sha256")}
    # Of ids that were hashed in parts: two such measurements are of the same texts where all parts are.
    both = {"sha256": sha256("".join(map(str, digests)).encode()).hexdigest()} if all(digests) else {}
    return merged | {"input": kept | both | {"joined": parts}}


def _packed(record: dict[str, Any]) -> dict[str, Any]:
    """What a record says of packed documents; without any, each sample is a row of one."""
    return record.get("packed", {"rows": record["samples"], "documents": record["samples"]})


def _first_ids(data: xr.Dataset, inputs: dict[str, Any]) -> dict[str, Any]:
    """The ids at the first position, of both."""
    found = {}
    for name, said in inputs.items():
        place = name.removeprefix("position_")
        if name == place or not isinstance(said, dict) or "token_id" not in data.coords:
            continue
        if int(place) in data["position"].values:
            column = data["token_id"].sel(position=int(place)).values
            distinct = sorted({int(token) for token in column if token >= 0})
            found[name] = {"token_ids": distinct[:SHOWN], "distinct": len(distinct)}
    return found
