"""Sections of a report: a figure, a sentence on what it shows, and its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import xarray as xr

from sinkscope.measurement import figures, hidden_map_table, hidden_norm_table, received_table, value_norm_table
from sinkscope.report.curves import training_curves, training_table
from sinkscope.report.page import Section
from sinkscope.report.runs import StoredRun

Measured = Mapping[str, xr.Dataset]
"""Datasets by name; several are drawn side by side on equal scales."""


ABOUT_TRAINING = (
    "Above: the sink rate at position 0. Below, on the same steps: the loss on validation text (marks) and on the "
    "training batches (pale lines)."
)


def training(runs: Sequence[StoredRun], sentence: str = ABOUT_TRAINING) -> Section:
    """Sink rate and loss over the steps of the runs."""
    return Section(
        "The sink over training",
        sentence,
        {"Sink rate and loss over training": training_curves(runs)},
        training_table(runs),
    )


def attention(measured: Measured, epsilon: float) -> Section:
    """Attention received per layer and head."""
    return Section(
        "Attention received, per layer and head",
        "Each cell is one attention head: the share of attention that one position receives, on average over samples "
        f"and the tokens that can see it. Orange cells exceed the threshold of {epsilon:g}, on average; the slider "
        "changes the position.",
        {name: figures.attention_received(data, epsilon=epsilon) for name, data in measured.items()},
        _stacked({name: received_table(data) for name, data in measured.items()}),
    )


def hidden_map(measured: Measured) -> Section:
    """Norm of the residual stream, depth × position."""
    limits = figures.norm_limits(*measured.values())
    return Section(
        "Hidden norms, per position and depth",
        "The norm of each token's vector in the residual stream, from the embedding (depth 0) upwards, on a "
        "logarithmic scale. A first column that differs from the others is the massive activation that comes with a "
        "sink.",
        {name: figures.hidden_norm_map(data, limits) for name, data in measured.items()},
        _stacked({name: hidden_map_table(data) for name, data in measured.items()}),
    )


def hidden(measured: Measured) -> Section:
    """Norm of the first token against the others, over depth."""
    limits = figures.norm_limits(*measured.values())
    return Section(
        "The first token against the others",
        "The same norms: the first token (orange) and the mean of all others (blue; the band covers the middle 80 % of "
        "positions). From the depth at which the lines part, the first token is unlike any other.",
        {name: figures.hidden_norms(data, limits=limits) for name, data in measured.items()},
        _stacked({name: hidden_norm_table(data) for name, data in measured.items()}),
    )


def values(measured: Measured) -> Section:
    """Value norms per layer."""
    return Section(
        "Value norms",
        "The norm of what a head adds when it attends to a token: bars are means over heads, marks are single heads. "
        "The value of a sink is short: attention to it changes little, which lets a head do nothing.",
        {name: figures.value_norms(data) for name, data in measured.items()},
        _stacked({name: value_norm_table(data) for name, data in measured.items()}),
    )


def positions(rates: Mapping[str, pd.DataFrame]) -> Section:
    """Sink rate per position; the frames are those of `rates_by_position`."""
    return Section(
        "Sink rate, per position",
        "The share of (layer, head) pairs in which each position exceeds the threshold, with 95 % intervals over "
        "samples. The highest is orange. In causal models, at most half of the tokens see the pale ones; the last few, "
        "which hardly any other token sees, exceed the threshold without being a sink.",
        {name: figures.sink_rate_by_position(frame) for name, frame in rates.items()},
        _stacked({name: frame[["position", "sink_rate", "low", "high"]].copy() for name, frame in rates.items()}),
    )


def inputs(frame: pd.DataFrame, sentence: str) -> Section:
    """Sink rate at position 0 by input; the frame has `input, sink_rate, low, high` and any columns to show."""
    titles = {"sink_rate": "sink rate (%)", "low": "95 % from", "high": "95 % to"}
    return Section(
        "The sink on different inputs",
        sentence,
        {"Sink rate at position 0 by input": figures.sink_rate_by_input(frame)},
        frame.rename(columns=titles),
        unfolded=True,
    )


def describe(measured: Measured, epsilon: float) -> list[Section]:
    """All sections for which the measurements have the variables."""
    builders_of = {
        "attention_received": [lambda data: attention(data, epsilon)],
        "hidden_norm": [hidden_map, hidden],
        "value_norm": [values],
    }
    return [
        build(having)
        for variable, builders in builders_of.items()
        if (having := {name: data for name, data in measured.items() if variable in data})
        for build in builders
    ]


def _stacked(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """One table of all measurements; with several, the first column names the measurement."""
    if len(frames) == 1:
        return next(iter(frames.values()))
    for name, frame in frames.items():
        frame.insert(0, "measurement", name)
    return pd.concat(frames.values(), ignore_index=True)
