"""Reading a measurement's dataset: its variables, positions, and the names of its layers and depths."""

from __future__ import annotations

import xarray as xr

from sinkscope.errors import InputError


def need(data: xr.Dataset, variable: str) -> xr.DataArray:
    """A variable of the dataset; `InputError` names what there is instead."""
    if variable not in data:
        raise InputError(f"this measurement holds no {variable}; it has {', '.join(map(str, data.data_vars))}")
    return data[variable]


def at(data: xr.Dataset, position: int) -> xr.Dataset:
    """The dataset at one position, which stays a dimension. Raises `InputError` for one that was not measured."""
    measured = data["position"].values.tolist()
    if position not in measured:
        raise InputError(f"position {position} is not among the measured ones ({measured[0]} to {measured[-1]})")
    return data.sel(position=[position])


def layer_labels(data: xr.Dataset) -> list[str]:
    """The model's own layer numbers, with the stack's name where a model has several (encoder, decoder, cross …)."""
    return _labels(data, "layer_index", "stack")


def depth_labels(data: xr.Dataset) -> list[str]:
    """The depths of the residual stream, 0 the embedding, with the stack's name where a model has several."""
    return _labels(data, "depth_index", "depth_stack")


def _labels(data: xr.Dataset, numbers: str, stacks: str) -> list[str]:
    names = data[stacks].values.tolist()
    if len(set(names)) == 1:
        names = [""] * len(names)
    return [f"{name} {number}".lstrip() for name, number in zip(names, data[numbers].values, strict=True)]
