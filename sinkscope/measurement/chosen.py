"""The sinks of a measurement as tokens that can be protected, hidden or changed."""

from __future__ import annotations

import numpy as np
import xarray as xr

from sinkscope.errors import InputError
from sinkscope.measurement.metrics import nanmean
from sinkscope.measurement.rates import received
from sinkscope.measurement.selection import TOKEN_STACKS, layers_of, sample_lengths, uniform_received, visible_queries
from sinkscope.measurement.slots import slot_mass_by_layer
from sinkscope.sinks import Evidence, Measured, Received, Rows, Tokens
from sinkscope.sinks.choice import By


def sinks(data: xr.Dataset, epsilon: float, by: By) -> Tokens:
    """See `Measurement.sinks`."""
    known = received_by(data)
    return Measured(epsilon, by).of(known, Evidence(rows_of(data, known)))


def received_by(data: xr.Dataset) -> Received:
    """What tokens of the main stack receive. Raises `InputError` where positions are missing."""
    alpha = received(data)
    positions = data["position"].values.tolist()
    if positions != list(range(len(positions))):
        raise InputError("sinks are looked for at all positions from 0 on: observe AttentionReceived('all')")
    stacks = {str(name) for name in data["stack"].values}
    own = layers_of(data, next(name for name in (*TOKEN_STACKS, *sorted(stacks)) if name in stacks))
    samples = data.sizes["sample"]
    row = data["row"].values if "row" in data.coords else np.arange(samples)
    start = data["start"].values if "start" in data.coords else np.zeros(samples, dtype=np.int64)
    return Received(
        alpha[:, own],
        np.nan_to_num(visible_queries(data)[:, own]),
        uniform_received(data)[:, own],
        tuple(data["layer_index"].values[own].tolist()),
        np.unique(row, return_inverse=True)[1],
        start,
        float(nanmean(slot_mass_by_layer(data)[own], 0)) if "slot_received" in data else 0.0,
    )


def rows_of(data: xr.Dataset, known: Received) -> Rows:
    """The rows that the samples are documents of."""
    lengths = sample_lengths(data, None)
    ends = known.start + lengths
    order = np.full((int(known.row.max()) + 1, int(ends.max())), -1)
    document, ids = np.zeros_like(order), np.full_like(order, -1)
    named = data["token_id"].transpose("sample", "position").values if "token_id" in data.coords else None
    for sample, (row, start, length) in enumerate(zip(known.row, known.start, lengths, strict=True)):
        place = slice(int(start), int(start + length))
        order[row, place] = np.arange(length)
        document[row, place] = int((known.row[:sample] == row).sum())
        if named is not None:
            ids[row, place] = named[sample, :length]
    return Rows(order, document, None if named is None else ids)
