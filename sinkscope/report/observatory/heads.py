"""The selected head: profile, angles, keys, attention map.

This file has their numbers, and the figures without numbers: the page's script fills them in when a reader selects
another head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from jaxtyping import Float

from sinkscope.errors import InputError
from sinkscope.measurement import PER_HEAD
from sinkscope.measurement.metrics import key_planes, nanmean
from sinkscope.measurement.selection import token_stack
from sinkscope.report.observatory.numbers import few, short
from sinkscope.theme import BLUE, INK, PAPER, SINK, SLATE, figure, tint

BINS = np.linspace(-1, 1, 41)
MOST_NUMBERS = 200_000
MOST_POINTS = 512
MOST_KEYS = 60_000
MAP_TOKENS = 128
MAP_DIGITS = 2
CROSSES = {"decoder": "cross"}  # the stack whose queries are the tokens of another stack, and its keys an encoder's

PROFILE: Final = "Attention received, by position"
ANGLES: Final = "Angles between queries and keys"
KEYS: Final = "The keys, in their two principal components"
MAP: Final = "Attention map"


@dataclass(frozen=True, eq=False)
class HeadMaps:
    """Attention maps of chosen heads, of one sample.

    `weights`: (query, key) arrays by (row along the measurement's axis `layer`, head), NaN or 0 if a query does not see
    a key. `tokens`: texts of the sample's tokens, which the decoder reads if there is one; empty if unknown.
    """

    weights: Mapping[tuple[int, int], Float[np.ndarray, "query key"]]
    tokens: Sequence[str] = field(default=())

    def check(self, data: xr.Dataset) -> None:
        """Raises `InputError` for a head that the measurement does not have."""
        layers, heads = data.sizes["layer"], data.sizes["head"]
        for layer, head in self.weights:
            if not (0 <= layer < layers and 0 <= head < heads):
                raise InputError(
                    f"an attention map of layer {layer}, head {head}: the measurement has {layers} layers of {heads}"
                )

    def payload(self, data: xr.Dataset) -> dict[str, Any]:
        """The first 128 tokens of each map, by "layer.head"; per layer, whether its queries and keys are `tokens`."""
        shown = {
            f"{layer}.{head}": short(weights[:MAP_TOKENS, :MAP_TOKENS], MAP_DIGITS)
            for (layer, head), weights in self.weights.items()
        }
        full = max((max(weights.shape) for weights in self.weights.values()), default=0)
        text = token_stack(data)
        named = [[stack in (text, CROSSES.get(text)), stack == text] for stack in data["stack"].values.tolist()]
        return {"weights": shown, "tokens": list(self.tokens[:MAP_TOKENS]), "named": named, "full": full}


def profile(data: xr.Dataset, keep: Sequence[int]) -> dict[str, Any]:
    """Attention received by each position, averaged over samples, per layer and head; and for uniform attention."""
    received = nanmean(data["attention_received"].transpose(*PER_HEAD).values, 0)
    positions = data["position"].values
    most = max(64, MOST_NUMBERS // (received.shape[0] * received.shape[1]))
    chosen = few(positions, most, tuple(keep))
    shown = {"positions": positions[chosen].tolist(), "received": short(received[..., chosen])}
    if "uniform_received" in data:
        uniform = nanmean(data["uniform_received"].transpose("sample", "layer", "position").values, 0)
        shown["uniform"] = short(uniform[:, chosen])
    return shown


def angles(data: xr.Dataset, position: int) -> dict[str, Any]:
    """Histograms of cos(q, k) per head, in percent: the keys at `position`, and all others."""
    cosine = data["cos_query_key"].transpose("layer", "head", "sample", "position")
    sink = cosine.sel(position=[position]).values
    others = cosine.values[..., cosine["position"].values != position]
    return {
        "centres": short((BINS[1:] + BINS[:-1]) / 2),
        "position": position,
        "sink": short(histograms(sink), 3),
        "others": short(histograms(others), 3),
    }


def histograms(cosine: Float[np.ndarray, "layer head sample position"]) -> Float[np.ndarray, "layer head bin"]:
    """Percent of a head's cosines in each bin, those rounded beyond ±1 in the outermost; NaN for a head without any."""
    layers, heads, *_ = cosine.shape
    bins, known = len(BINS) - 1, ~np.isnan(cosine)
    index = np.clip(np.digitize(np.nan_to_num(cosine), BINS) - 1, 0, bins - 1)
    index += bins * np.arange(layers * heads).reshape(layers, heads, 1, 1)
    counts = np.bincount(index[known], minlength=layers * heads * bins).reshape(layers, heads, bins)
    total = counts.sum(-1, keepdims=True)
    return np.where(total > 0, 100 * counts / np.maximum(total, 1), np.nan)


def keys(data: xr.Dataset, position: int) -> dict[str, Any]:
    """The keys of each head in the plane of their two principal components, with the components' shares of variance.

    Points are (sample, position) pairs, the same for all heads.
    """
    vectors = thinned(data["key_vectors"], position, data.sizes["layer"] * data.sizes["head"])
    samples, positions = point_labels(vectors)
    plane = key_planes(vectors.transpose("kept", "layer", "head", "kept_position", "key_dim").values)
    return {
        "sample": samples.tolist(),
        "position": positions.tolist(),
        "marked": marked(vectors, position),
        "points": [[short(head.points.T, 3) for head in layer] for layer in plane],
        "shares": [[short(head.shares, 3) for head in layer] for layer in plane],
    }


def marked(vectors: xr.DataArray, position: int) -> int:
    """The position that is marked: `position` if it was kept, otherwise the first kept one."""
    kept = position_labels(vectors)
    return position if position in kept else int(kept[0])


def thinned(vectors: xr.DataArray, position: int, planes: int) -> xr.DataArray:
    """Fewer positions if needed, so that `planes` drawings of all points stay small; `position` is among them."""
    most = min(MOST_POINTS, max(32, MOST_KEYS // (2 * planes)))
    labels = position_labels(vectors)
    chosen = few(labels, max(8, most // vectors.sizes["kept"]), (position,))
    return vectors.assign_coords(kept_position=labels).isel(kept_position=chosen)


def point_labels(vectors: xr.DataArray) -> tuple[np.ndarray, np.ndarray]:
    """Sample and position of each point, sample by sample."""
    positions, samples = position_labels(vectors), vectors.sizes["kept"]
    return np.repeat(np.arange(samples), len(positions)), np.tile(positions, samples)


def position_labels(vectors: xr.DataArray) -> np.ndarray:
    """The positions in the text along the axis `kept_position`."""
    if "kept_position" in vectors.coords:
        return vectors["kept_position"].values
    return np.arange(vectors.sizes["kept_position"])


def profile_figure(epsilon: float) -> go.Figure:
    """Traces: the head, uniform attention."""
    result = figure(height=260)
    result.add_scatter(
        x=[],
        y=[],
        name="this head",
        mode="lines+markers",
        line={"color": BLUE, "width": 2},
        marker={"size": 4},
        hovertemplate="position %{x}: %{y:.3g}<extra></extra>",
    )
    result.add_scatter(
        x=[], y=[], name="uniform attention", mode="lines", line={"color": SLATE, "dash": "dot"}, hoverinfo="skip"
    )
    result.add_hline(y=epsilon, line={"color": SINK, "width": 1, "dash": "dash"})
    result.add_annotation(
        x=1, xref="paper", y=epsilon, text=f"ε = {epsilon:g}", xanchor="right", yanchor="bottom", bgcolor=PAPER
    )
    return result.update_layout(
        xaxis={"title": {"text": "position in the text (tokens)"}},
        yaxis={"title": {"text": "share of attention"}, "rangemode": "tozero"},
    )


def angles_figure(position: int) -> go.Figure:
    """Traces: the position, the others."""
    result = figure(height=240)
    for name, color, pattern in ((f"position {position}", SINK, ""), ("other positions", BLUE, "/")):
        result.add_bar(
            x=[],
            y=[],
            name=name,
            marker={"color": tint(color, 0.55), "line": {"color": color, "width": 1}, "pattern": {"shape": pattern}},
            hovertemplate="cosine %{x:.2f}: %{y:.3g} % of keys<extra>%{fullData.name}</extra>",
        )
    return result.update_layout(
        xaxis={"title": {"text": "cosine of query and key"}, "range": [-1, 1]},
        yaxis={"title": {"text": "keys (%)"}, "rangemode": "tozero"},
        barmode="overlay",
        bargap=0,
    )


def keys_figure(position: int) -> go.Figure:
    """Traces: the other positions, the position."""
    return planar("key", position, 300)


def planar(what: str, position: int, height: int) -> go.Figure:
    """Points in a plane: the other positions, and the marked one."""
    result = figure(height=height)
    for name, color, symbol, size in (
        ("other positions", BLUE, "circle", 5),
        (f"position {position}", SINK, "diamond", 10),
    ):
        result.add_scatter(
            x=[],
            y=[],
            customdata=[],
            name=name,
            mode="markers",
            marker={
                "color": tint(color, 0.7),
                "symbol": symbol,
                "size": size,
                "line": {"width": 0.5, "color": INK if size > 5 else color},
            },
            hovertemplate=f"{what} at position %{{customdata[0]}}, sample %{{customdata[1]}}<extra></extra>",
        )
    return result.update_layout(
        xaxis={"title": {"text": "first component"}, "zeroline": False},
        yaxis={"title": {"text": "second component"}, "zeroline": False},
    )


def map_figure() -> go.Figure:
    """One heat map, queries downwards."""
    result = figure(height=360, legend=False)
    result.add_heatmap(z=[], coloraxis="coloraxis", hovertemplate="%{text}<extra></extra>", hoverongaps=False)
    return result.update_layout(
        xaxis={"title": {"text": "key: position that is attended to"}, "showgrid": False, "constrain": "domain"},
        yaxis={
            "title": {"text": "query: position that attends"},
            "showgrid": False,
            "autorange": "reversed",
            "scaleanchor": "x",
            "constrain": "domain",
        },
        coloraxis={"cmin": 0, "cmax": 1, "colorbar": {"title": {"text": "weight"}}},
    )
