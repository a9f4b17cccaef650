"""Sections of a report: each joins a figure, what a reader sees in it, and its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import xarray as xr

from sinkscope.measurement import figures, hidden_map_table, hidden_norm_table, received_table, value_norm_table
from sinkscope.measurement import figures as norms
from sinkscope.report.curves import training_curves, training_table
from sinkscope.report.page import Section
from sinkscope.report.runs import StoredRun

Measured = Mapping[str, xr.Dataset]
"""Datasets by the name that a reader knows them by; several are drawn side by side on equal scales."""


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
        "leads to other positions.",
        {name: figures.attention_received(data, epsilon=epsilon) for name, data in measured.items()},
        _stacked({name: received_table(data) for name, data in measured.items()}),
    )


def hidden_map(measured: Measured) -> Section:
    """Norm of the residual stream, depth × position."""
    limits = norms.norm_limits(*measured.values())
    return Section(
        "Hidden norms, per position and depth",
        "How long the vector is that each token carries through the model, from the embedding (depth 0) upwards, on a "
        "logarithmic scale. A first column that stands out is the massive activation that goes with a sink.",
        {name: norms.hidden_norm_map(data, limits) for name, data in measured.items()},
        _stacked({name: hidden_map_table(data) for name, data in measured.items()}),
    )


def hidden(measured: Measured) -> Section:
    """Norm of the first token against the others, over depth."""
    limits = norms.norm_limits(*measured.values())
    return Section(
        "The first token against the others",
        "The same norms, first token (orange) against the mean of all others (blue; the band holds the middle 80 % of "
        "positions). Where the lines part, the first token has become unlike any other.",
        {name: norms.hidden_norms(data, limits=limits) for name, data in measured.items()},
        _stacked({name: hidden_norm_table(data) for name, data in measured.items()}),
    )


def values(measured: Measured) -> Section:
    """Value norms per layer."""
    return Section(
        "Value norms",
        "What a head adds when it attends to a token: bars are means over heads, marks single heads. Where a sink has "
        "formed, its value is short: attention that goes there changes little, which is how a head does nothing.",
        {name: norms.value_norms(data) for name, data in measured.items()},
        _stacked({name: value_norm_table(data) for name, data in measured.items()}),
    )


def positions(rates: Mapping[str, pd.DataFrame]) -> Section:
    """Sink rate per position; the frames are those of `rates_by_position`."""
    return Section(
        "Sink rate, per position",
        "In how many (layer, head) pairs each position exceeds the threshold, with 95 % intervals over "
        "samples. The highest is orange. In causal models, at most half of the tokens see the pale ones: the last "
        "few, seen by hardly any token but themselves, exceed it without being a sink.",
        {name: figures.sink_rate_by_position(frame) for name, frame in rates.items()},
        _stacked({name: frame[["position", "sink_rate", "low", "high"]].copy() for name, frame in rates.items()}),
    )


def inputs(frame: pd.DataFrame, sentence: str) -> Section:
    """Sink rate at position 0 by input; the frame holds `input, sink_rate, low, high` and whatever else to show."""
    titles = {"sink_rate": "sink rate (%)", "low": "95 % from", "high": "95 % to"}
    return Section(
        "The sink on different inputs",
        sentence,
        {"Sink rate at position 0 by input": figures.sink_rate_by_input(frame)},
        frame.rename(columns=titles),
        unfolded=True,
    )


def describe(measured: Measured, epsilon: float) -> list[Section]:
    """All sections that the measurements have the variables for."""
    made = {
        "attention_received": [lambda data: attention(data, epsilon)],
        "hidden_norm": [hidden_map, hidden],
        "value_norm": [values],
    }
    return [
        build(having)
        for variable, builders in made.items()
        if (having := {name: data for name, data in measured.items() if variable in data})
        for build in builders
    ]


def _stacked(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """One table of all measurements; with several, the first column says whose row it is."""
    if len(frames) == 1:
        return next(iter(frames.values()))
    for name, frame in frames.items():
        frame.insert(0, "measurement", name)
    return pd.concat(frames.values(), ignore_index=True)
