"""A row for each token of each sample: its text, what every head gives it, and its norms."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.errors import InputError
from sinkscope.measurement.selection import TokenView, record_of
from sinkscope.measurement.texts import TokenTexts

NORMS = ("query_norm", "key_norm", "value_norm")


def token_table(data: xr.Dataset, layer: int | None = None) -> pd.DataFrame:
    """See `Measurement.by_token`."""
    if "attention_received" not in data:
        raise InputError("this measurement has no attention received: observe AttentionReceived('all')")
    stack = TokenView(data, 0.0).stack  # of the tokens; an encoder-decoder has others beside it
    mine = data["stack"].values == stack
    numbers = data["layer_index"].values
    chosen = np.flatnonzero(mine if layer is None else mine & (numbers == layer))
    if not len(chosen):
        raise InputError(f"layer {layer} was not measured: there are {', '.join(map(str, numbers[mine]))}")
    at = data.isel(layer=chosen)
    alpha = at["attention_received"].transpose("sample", "position", "layer", "head").values
    samples, positions, layers, heads = alpha.shape
    columns: dict[str, np.ndarray] = {
        "sample": np.repeat(np.arange(samples), positions),
        "position": np.tile(data["position"].values, samples),
    }
    if "token_id" in data.coords:
        columns["token_id"] = data["token_id"].values.reshape(-1)
        if texts := TokenTexts.of(record_of(data)).alone():
            columns["text"] = np.array([texts.get(int(token), "") for token in columns["token_id"]], dtype=object)
    for place in range(layers):
        for head in range(heads):
            columns[f"alpha {numbers[chosen[place]]}.{head}"] = alpha[:, :, place, head].reshape(-1)
    if "hidden_norm" in data:
        norms = data["hidden_norm"].transpose("sample", "position", "depth").values
        for place, depth in enumerate(data["depth_index"].values):
            if data["depth_stack"].values[place] == stack and (layer is None or depth in (layer, layer + 1)):
                columns[f"hidden {depth}"] = norms[:, :, place].reshape(-1)
    for name in NORMS if layer is not None else ():
        if name in at:
            values = at[name].transpose("sample", "position", "layer", "head").values
            for head in range(heads):
                columns[f"{name.removesuffix('_norm')} {layer}.{head}"] = values[:, :, 0, head].reshape(-1)
    table = pd.DataFrame(columns)
    there = (table["token_id"] >= 0) if "token_id" in table else np.isfinite(alpha).any((2, 3)).reshape(-1)
    return table[there].reset_index(drop=True)
