"""The sinks of a measurement, by the rule of `sinkscope.sinks`."""

from __future__ import annotations

import numpy as np
import xarray as xr

from sinkscope.errors import InputError
from sinkscope.measurement.rates import received
from sinkscope.measurement.selection import TOKEN_STACKS, layers_of, need
from sinkscope.sinks import EPSILON, Evidence, Measured, Received, Rows, Tokens
from sinkscope.sinks.choice import By
from sinkscope.statistics import nanmean


def sinks(data: xr.Dataset, epsilon: float = EPSILON, by: By = "position", stack: str | None = None) -> Tokens:
    """See `Measurement.sinks`."""
    known = received_in(data, stack)
    return Measured(epsilon, by).of(known, Evidence(rows_of(data, known)))


def received_in(data: xr.Dataset, stack: str | None = None) -> Received:
    """What the tokens of a stack receive: of the first that has tokens (decoder, encoder, vision, audio) by default.

    Raises `InputError` for a measurement without attention received, or of before visible queries were counted.
    """
    names = [str(name) for name in data["stack"].values]
    if stack is None:
        stack = next(name for name in (*TOKEN_STACKS, *names) if name in names)
    alpha = received(data, stack)
    if "visible_queries" not in data:
        raise InputError(
            "this measurement is of before visible queries were counted, so its sinks cannot be told: measure again"
        )
    own, positions = layers_of(data, stack), data["position"].values.astype(int)
    width = int(positions.max(initial=-1)) + 1
    counts = {}
    for name in ("visible_queries", "uniform_received"):
        values = need(data, name).transpose("sample", "layer", "position").values[:, own]
        counts[name] = _spread(values, positions, width)
    slots = data["slot_received"].values if "slot_received" in data else np.zeros(1)
    mean = slots
    while mean.ndim:
        mean = nanmean(mean, 0)
    row = data["row"].values if "row" in data.coords else np.arange(len(alpha))
    start = data["start"].values if "start" in data.coords else np.zeros(len(alpha), int)
    return Received(
        _spread(alpha, positions, width),
        counts["visible_queries"],
        counts["uniform_received"],
        tuple(int(index) for index in data["layer_index"].values[own]),
        row.astype(int),
        start.astype(int),
        float(np.nan_to_num(mean)),
    )


def rows_of(data: xr.Dataset, known: Received) -> Rows:
    """The texts of a measurement, one row per sample that is a row of its own, documents of a row after one another."""
    seen = (np.nan_to_num(known.visible).max(1) > 0).sum(-1)
    rows = int(known.row.max(initial=-1)) + 1
    lengths = np.zeros(rows, dtype=int)
    np.maximum.at(lengths, known.row, known.start + seen)
    order = np.full((rows, int(lengths.max(initial=0))), -1)
    document = np.zeros_like(order)
    for number, (row, start, count) in enumerate(zip(known.row, known.start, seen, strict=True)):
        order[row, start : start + count] = np.arange(count)
        document[row, start : start + count] = number
    return Rows(order, document)


def _spread(values: np.ndarray, positions: np.ndarray, width: int) -> np.ndarray:
    """Values at all positions up to the last that was measured, NaN between."""
    if len(positions) == width:
        return values
    wide = np.full((*values.shape[:-1], width), np.nan)
    wide[..., positions] = values
    return wide
