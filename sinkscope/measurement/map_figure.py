"""One head's attention map."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from sinkscope.errors import InputError
from sinkscope.measurement.selection import layers_of, record_of, token_stack
from sinkscope.measurement.texts import TokenTexts


def head_map(data: xr.Dataset, layer: int, head: int) -> go.Figure:
    """A[t, k] of one head on the first sample, queries downward; needs `AttentionMaps`. Raises `InputError` without.

    `layer`: its number in the stack that the token ids belong to, the decoder of an encoder-decoder.
    """
    if "attention_map" not in data:
        raise InputError("no maps were kept: measure with observers=[AttentionMaps(tokens=64)]")
    data = data.isel(layer=layers_of(data, token_stack(data)))
    numbers = data["layer_index"].values.tolist()
    if layer not in numbers:
        raise InputError(f"layer {layer} was not measured: there are {', '.join(map(str, numbers))}")
    if head not in range(data.sizes["head"]):
        raise InputError(f"head {head} does not exist: layer {layer} has heads 0 to {data.sizes['head'] - 1}")
    weights = data["attention_map"].isel(kept=0, layer=numbers.index(layer), head=head).transpose("query", "key")
    shown = np.where(np.triu(np.ones(weights.shape, bool), 1) & (weights.values == 0), np.nan, weights.values)
    texts = TokenTexts.of(record_of(data)).alone()
    ids = data["token_id"].values[0] if "token_id" in data.coords else []
    spelled = [texts.get(int(token), "") for token in ids[: len(shown)]] + [""] * (len(shown) - len(ids))
    names = [f"{place} {text}".strip() for place, text in enumerate(spelled)]
    figure = go.Figure(
        go.Heatmap(
            z=shown,
            zmin=0,
            zmax=1,
            colorbar={"title": "weight"},
            hovertemplate="query %{y}<br>key %{x}<br>%{z:.3f}<extra></extra>",
        )
    )
    ticks = list(range(len(names)))
    figure.update_xaxes(title="key", tickvals=ticks, ticktext=names, side="top", constrain="domain")
    figure.update_yaxes(title="query", tickvals=ticks, ticktext=names, autorange="reversed", scaleanchor="x")
    return figure.update_layout(title=f"layer {layer}, head {head}", width=760, height=760)
