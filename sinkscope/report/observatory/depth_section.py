"""Sections on the residual stream over depth: norms, extremes, entropy, spread, spectral bands, and its plane."""

from __future__ import annotations

import pandas as pd
import xarray as xr

from sinkscope.report import sections
from sinkscope.report.observatory import drawings
from sinkscope.report.page import Section

SHAPES = {
    "matrix_entropy": "matrix entropy of the hidden states (nats)",
    "hidden_spread": "spread of the hidden states around their mean",
    "kurtosis": "kurtosis of all entries",
    "kurtosis_neurons": "kurtosis over neurons",
    "last_pair_distance": "distance of the last two tokens (L2)",
}


def depth_sections(data: xr.Dataset, position: int) -> list[Section]:
    """What the measurement has the variables for, from norms to geometry."""
    return [
        *(_norms(data) if "hidden_norm" in data else []),
        *([_extremes(data)] if "hidden_max" in data else []),
        *([_shapes(data)] if any(name in data for name in SHAPES) else []),
        *([_bands(data)] if {"band_energy", "band_energy_mean"} & {*data.data_vars} else []),
        *([_plane(data, position)] if "hidden_vectors" in data else []),
    ]


def _norms(data: xr.Dataset) -> list[Section]:
    measured = {"this model": data}
    figure, table = drawings.longest(data)
    first = sections.hidden(measured) if 0 in data["position"].values else None
    largest = Section(
        "The longest token",
        "At each depth, the norm of the single longest token, whichever it is, beside the mean of all; hover for its "
        "position.",
        {"Norm of the longest token over depth": figure},
        table,
    )
    return [sections.hidden_map(measured), *([first] if first else []), largest]


def _extremes(data: xr.Dataset) -> Section:
    figure, table = drawings.extremes(data)
    return Section(
        "The largest entries",
        "The largest entry of the residual stream, in absolute value, over depth. A massive activation is an entry "
        "above 100 and above 1000 times the median of its depth: a line that leaves the median by three powers of ten.",
        {"Largest entries over depth": figure},
        table,
    )


def _shapes(data: xr.Dataset) -> Section:
    figures, tables = {}, []
    for name, title in SHAPES.items():
        if name in data and bool(data[name].notnull().any()):
            line, table = drawings.over_depth(data, {title: data[name].mean("sample").values}, title)
            figures[title[0].upper() + title[1:]] = line
            tables.append(table.set_index("depth"))
    return Section(
        "The shape of the hidden states",
        "One number per depth, mean over samples. Low matrix entropy in the middle is a compression valley: a few "
        "directions, mostly that of the massive activation, hold nearly all of the energy. High kurtosis means that "
        "few entries are far larger than the rest.",
        figures,
        pd.concat(tables, axis=1).reset_index() if tables else None,
    )


def _bands(data: xr.Dataset) -> Section:
    figures, table = drawings.bands(data)
    return Section(
        "Energy by band of the unembedding",
        "How the energy of the residual stream divides over directions, sorted by how strongly the unembedding reads "
        "them: the first band is what the output sees most, the last hardly shows in it. Sinks tend to write there.",
        figures,
        table,
    )


def _plane(data: xr.Dataset, position: int) -> Section:
    figure, table = drawings.hidden_plane(data, position)
    return Section(
        "Hidden states in the plane",
        "Each point is a token of a kept sample, in the two directions in which the states of its depth differ most. "
        "Diamonds are the sink's position (the first one, where that was not kept): far from the rest, they differ "
        "from it more than the rest among itself. The slider leads through the depths.",
        {"Hidden states in their two principal components": figure},
        table,
    )
