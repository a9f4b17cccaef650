"""From the sums of all batches to one labelled measurement."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float
from torch import Tensor

from sinkscope.errors import InputError
from sinkscope.probes.batch import Batch, Depth, Place
from sinkscope.probes.measurements.measurement import Measurement
from sinkscope.probes.observers.observer import Array, LayerSums, Observer
from sinkscope.probes.structure.layers import Layer


@dataclass(frozen=True, eq=False)
class _Found:
    """One array at one place for the samples of one batch, reduced to real tokens."""

    name: str
    samples: slice
    place: Place
    values: Float[np.ndarray, "batch heads n"]
    positions: Sequence[int] | None  # a range where all are covered; None where n is no position


def assemble(batches: Sequence[Batch], observers: Sequence[Observer], facts: Mapping[str, Any]) -> Measurement:
    """The measurement. Raises `InputError` where activations were NaN or infinite, naming the first place."""
    for batch in batches:
        _check_finite(batch)
    found = list(_found(batches, observers))
    places = list(dict.fromkeys(place for batch in batches for place in batch.places))
    layers = _by_stack([place for place in places if isinstance(place, Layer)])
    depths = _by_stack([place for place in places if isinstance(place, Depth)])
    samples = sum(batch.size for batch in batches)
    data = xr.Dataset(_variables(found, layers, depths, samples), coords=_coordinates(found, layers, depths))
    data["tokens"] = (("sample", "layer"), _tokens(batches, layers))
    data.attrs["record"] = json.dumps({**facts, "samples": samples, "tokens": int(data["tokens"].max())})
    return Measurement(data)


def compact(
    values: Float[Tensor, "batch heads n"], real: Bool[Tensor, "batch position"]
) -> Float[Tensor, "batch heads position"]:
    """Columns of real tokens moved to the front, NaN behind them and where `values` ends early."""
    values = torch.nn.functional.pad(values, (0, real.shape[1] - values.shape[-1]), value=torch.nan)
    order = torch.argsort((~real).int(), dim=-1, stable=True)
    front = values.gather(-1, order[:, None, :].expand_as(values))
    tail = torch.arange(real.shape[1]) >= real.sum(-1, keepdim=True)
    return front.masked_fill(tail[:, None, :], torch.nan)


def _found(batches: Sequence[Batch], observers: Sequence[Observer]) -> Iterator[_Found]:
    start = 0
    for batch in batches:
        samples = slice(start, start + batch.size)
        start = samples.stop
        for place in batch.places:
            for observer in observers:
                sums = batch.found(place, type(observer).__name__)
                for name, array in observer.arrays(sums).items():
                    yield _Found(name, samples, place, *_reduced(array, sums))


def _reduced(array: Array, sums: LayerSums) -> tuple[np.ndarray, Sequence[int] | None]:
    if array.along == "nothing":
        return array.values.numpy(), None
    if isinstance(array.along, tuple):
        return array.values.numpy(), array.along
    values = compact(array.values, sums.keys if array.along == "key" else sums.queries).numpy()
    return values, range(values.shape[-1])


def _positions(found: Sequence[_Found]) -> list[int]:
    """All positions of the arrays that cover everything; where there is none, those that were asked for."""
    covered = [len(item.positions) for item in found if isinstance(item.positions, range)]
    if covered:
        return list(range(max(covered)))
    return sorted({position for item in found for position in item.positions or ()})


def _variables(
    found: Sequence[_Found], layers: Sequence[Layer], depths: Sequence[Depth], samples: int
) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    """Every array in one block per name, NaN where a sample, layer or head has no value."""
    column = {position: index for index, position in enumerate(_positions(found))}
    heads = max((item.values.shape[1] for item in found if isinstance(item.place, Layer)), default=0)
    sizes = {"sample": samples, "layer": len(layers), "depth": len(depths), "head": heads, "position": len(column)}
    variables: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}
    for item in found:
        dims = _dims(item)
        empty = np.full([sizes[dim] for dim in dims], np.nan, np.float32)
        _, block = variables.setdefault(item.name, (dims, empty))
        if isinstance(item.place, Depth):
            view, values = block[item.samples, depths.index(item.place)], item.values[:, 0]
        else:
            view, values = block[item.samples, layers.index(item.place), : item.values.shape[1]], item.values
        if item.positions is None:
            view[...] = values[..., 0]
        else:
            known = [index for index, position in enumerate(item.positions) if position in column]
            view[..., [column[item.positions[index]] for index in known]] = values[..., known]
    return variables


def _dims(item: _Found) -> tuple[str, ...]:
    if isinstance(item.place, Depth):
        return "sample", "depth", "position"
    return ("sample", "layer", "head") if item.positions is None else ("sample", "layer", "head", "position")


def _coordinates(
    found: Sequence[_Found], layers: Sequence[Layer], depths: Sequence[Depth]
) -> dict[str, tuple[str, list[Any]]]:
    coordinates: dict[str, tuple[str, list[Any]]] = {
        "layer_index": ("layer", _indices(layers)),
        "stack": ("layer", [layer.stack for layer in layers]),
        "layer_name": ("layer", [layer.name for layer in layers]),
    }
    if depths:
        coordinates["depth"] = ("depth", list(range(len(depths))))
        coordinates["depth_index"] = ("depth", [depth.index for depth in depths])
        coordinates["depth_stack"] = ("depth", [depth.stack for depth in depths])
    if positions := _positions(found):
        coordinates["position"] = ("position", positions)
    return coordinates


def _indices(layers: Sequence[Layer]) -> list[int]:
    """The model's own layer numbers; running ones in a stack whose layers have none, or share them."""
    numbers: list[int] = []
    for layer in layers:
        members = [other for other in layers if other.stack == layer.stack]
        own = [other.index for other in members]
        numbers.append(layer.index if -1 not in own and len(set(own)) == len(own) else members.index(layer))
    return numbers


def _tokens(batches: Sequence[Batch], layers: Sequence[Layer]) -> np.ndarray:
    """Real tokens that a sample's keys were, per layer; 0 where the layer did not run."""
    tokens = np.zeros((sum(batch.size for batch in batches), len(layers)), np.int64)
    start = 0
    for batch in batches:
        for index, layer in enumerate(layers):
            if layer in batch.places:
                tokens[start : start + batch.size, index] = batch.found(layer, "").keys.sum(-1).numpy()
        start += batch.size
    return tokens


def _by_stack(places: list[Any]) -> list[Any]:
    """Places of one stack together, otherwise in the order in which they ran."""
    stacks = list(dict.fromkeys(place.stack for place in places))
    return sorted(places, key=lambda place: stacks.index(place.stack))


def _check_finite(batch: Batch) -> None:
    for place, sums in batch.places.items():
        if not all(bool(torch.isfinite(values).all()) for values in sums.sums.values()):
            where = f"layer '{place.name}'" if isinstance(place, Layer) else f"depth {place.index} of the {place.stack}"
            raise InputError(f"the model's activations are NaN or infinite, first at {where}: nothing can be measured")
