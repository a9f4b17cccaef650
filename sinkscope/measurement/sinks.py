"""What the tokens of a measurement receive, as the rule of `sinkscope.sinks` reads it."""

from __future__ import annotations

import numpy as np
import xarray as xr

from sinkscope.errors import InputError
from sinkscope.measurement.metrics import nanmean
from sinkscope.measurement.rates import received
from sinkscope.measurement.selection import layers_of, sample_lengths, token_stack, uniform_received, visible_queries
from sinkscope.measurement.slots import slot_mass_by_layer
from sinkscope.sinks import ReceivedAttention, Rows


def received_by_tokens(data: xr.Dataset, stack: str | None = None) -> ReceivedAttention:
    """What each token of a stack receives; default: the first stack with tokens (decoder, encoder, vision, audio).

    Raises `InputError` if some position from 0 on, or every layer of the stack, was not measured.
    """
    alpha = received(data)
    positions = data["position"].values.tolist()
    if positions != list(range(len(positions))):
        raise InputError("sinks are looked for at all positions from 0 on: observe AttentionReceived('all')")
    layers = layers_of(data, stack or token_stack(data))
    if not layers.any():
        measured = ", ".join(sorted({*map(str, data["stack"].values)}))
        raise InputError(f"sinks are looked for in the {stack}, of which no layer was measured; measured: {measured}")
    samples = data.sizes["sample"]
    row = data["row"].values if "row" in data.coords else np.arange(samples)
    start = data["start"].values if "start" in data.coords else np.zeros(samples, dtype=np.int64)
    return ReceivedAttention(
        alpha[:, layers],
        np.nan_to_num(visible_queries(data)[:, layers]),
        uniform_received(data)[:, layers],
        tuple(data["layer_index"].values[layers].tolist()),
        np.unique(row, return_inverse=True)[1],
        start,
        float(np.nan_to_num(nanmean(slot_mass_by_layer(data)[layers], 0))) if "slot_received" in data else 0.0,
    )


def rows_of_samples(data: xr.Dataset, tokens: ReceivedAttention) -> Rows:
    """The rows of which the samples are documents, with their token ids if these were given."""
    lengths = sample_lengths(data, token_stack(data))
    ends = tokens.start + lengths
    order = np.full((int(tokens.row.max()) + 1, int(ends.max())), -1)
    document, ids = np.zeros_like(order), np.full_like(order, -1)
    known_ids = data["token_id"].transpose("sample", "position").values if "token_id" in data.coords else None
    for sample, (row, start, length) in enumerate(zip(tokens.row, tokens.start, lengths, strict=True)):
        columns = slice(int(start), int(start + length))
        order[row, columns] = np.arange(length)
        document[row, columns] = int((tokens.row[:sample] == row).sum())
        if known_ids is not None:
            ids[row, columns] = known_ids[sample, :length]
    return Rows(order, document, None if known_ids is None else ids)
