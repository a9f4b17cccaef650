"""Sections on a whole model: the sink rate over T and ε, angles, and the residual stream over depth."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from sinkscope.measurement import depth_labels, has_position
from sinkscope.measurement.metrics import EPSILONS, nanmean, principal_components
from sinkscope.measurement.rates import sweep
from sinkscope.report import sections
from sinkscope.report.observatory import heads
from sinkscope.report.observatory.numbers import short
from sinkscope.report.page import Section
from sinkscope.theme import BLUE, DASHES, PURPLE, SERIES, SINK, SLATE, SYMBOLS, figure

SHAPES = {
    "matrix_entropy": "matrix entropy of the hidden states (nats)",
    "hidden_spread": "spread of the hidden states around their mean",
    "kurtosis": "kurtosis of all entries",
    "kurtosis_neurons": "kurtosis over neurons",
    "last_pair_distance": "distance of the last two tokens (L2)",
}


def sweep_section(data: xr.Dataset) -> Section:
    """Needs `attention_received_by_length`."""
    table = sweep_table(data)
    return Section(
        "The sink rate over length and threshold",
        "The same measurement at shorter lengths and other thresholds. A strong sink keeps its rate as ε grows; the "
        "rate usually falls with the length.",
        {"Sink rate over length": sweep_lines(table)},
        table,
    )


def angle_section(data: xr.Dataset, position: int) -> Section:
    """Needs `cos_query_key`, measured at the position."""
    table = angle_table(data, position)
    return Section(
        "Angles between queries and keys, all heads",
        f"The cosine of keys with the queries that see them, at position {position} (orange) and elsewhere (blue, "
        "hatched); each head counts once. Orange far to the right of blue: the sink's key is aligned with the queries.",
        {"Angles between queries and keys, all heads": angles(table, position)},
        table,
    )


def depth_sections(data: xr.Dataset, position: int) -> list[Section]:
    """The sections for which the measurement has the variables, from norms to geometry."""
    return [
        *(_norms(data) if "hidden_norm" in data else []),
        *([_extremes(data)] if "hidden_max" in data else []),
        *([_shapes(data)] if any(name in data for name in SHAPES) else []),
        *([_bands(data)] if {"band_energy", "band_energy_mean"} & {*data.data_vars} else []),
        *([_plane(data, position)] if "hidden_vectors" in data else []),
    ]


def _norms(data: xr.Dataset) -> list[Section]:
    measured = {"this model": data}
    figure, table = longest(data)
    first = sections.hidden(measured) if has_position(data, 0) else None
    largest = Section(
        "The longest token",
        "At each depth, the norm of the token with the largest norm, and the mean of all tokens; hover for its "
        "position.",
        {"Norm of the longest token over depth": figure},
        table,
    )
    return [sections.hidden_map(measured), *([first] if first else []), largest]


def _extremes(data: xr.Dataset) -> Section:
    figure, table = extremes(data)
    return Section(
        "The largest entries",
        "The largest absolute entry of the residual stream over depth. A massive activation is an entry above 100 and "
        "above 1000 times the median of its depth: a line three powers of ten above the median.",
        {"Largest entries over depth": figure},
        table,
    )


def _shapes(data: xr.Dataset) -> Section:
    figures, tables = {}, []
    for name, title in SHAPES.items():
        if name in data and bool(data[name].notnull().any()):
            line, table = over_depth(data, {title: data[name].mean("sample").values}, title)
            figures[title[0].upper() + title[1:]] = line
            tables.append(table.set_index("depth"))
    return Section(
        "The shape of the hidden states",
        "One number per depth, averaged over samples. Low matrix entropy in the middle is a compression valley: a few "
        "directions, mostly that of the massive activation, have nearly all of the energy. High kurtosis means that a "
        "few entries are far larger than the rest.",
        figures,
        pd.concat(tables, axis=1).reset_index() if tables else None,
    )


def _bands(data: xr.Dataset) -> Section:
    figures, table = bands(data)
    return Section(
        "Energy by band of the unembedding",
        "The share of the residual stream's energy in bands of directions, sorted by how strongly the unembedding "
        "reads them: the first band affects the output most, the last one least. Sinks tend to write to the last "
        "bands.",
        figures,
        table,
    )


def _plane(data: xr.Dataset, position: int) -> Section:
    figure, table = hidden_plane(data, position)
    return Section(
        "Hidden states in the plane",
        "Each point is a token of a kept sample, in the two directions in which the states of its depth differ most. "
        "Diamonds are the sink's position (the first kept one, if it was not kept): far from the rest, they differ "
        "from the other tokens more than these differ from each other. The slider changes the depth.",
        {"Hidden states in their two principal components": figure},
        table,
    )


def sweep_table(data: xr.Dataset) -> pd.DataFrame:
    """Sink rate at position 0 in percent, one row per length, one column per ε (Gu et al. 2025, section 3)."""
    rates = sweep(data, EPSILONS)
    columns = {f"ε = {epsilon:g}": rate for epsilon, rate in zip(EPSILONS, rates.values, strict=True)}
    return pd.DataFrame({"tokens": rates["length"].values, **columns})


def sweep_lines(table: pd.DataFrame) -> go.Figure:
    """Lines over the length, one for each ε."""
    result = figure(height=320)
    for name, color, dash, symbol in zip(table.columns[1:], SERIES, DASHES, SYMBOLS, strict=True):
        result.add_scatter(
            x=table["tokens"].tolist(),
            y=table[name].tolist(),
            name=name,
            mode="lines+markers",
            line={"color": color, "dash": dash},
            marker={"symbol": symbol, "size": 7},
            hovertemplate="%{x} tokens: %{y:.2f} %<extra>%{fullData.name}</extra>",
        )
    return result.update_layout(
        xaxis={"title": {"text": "length of the text (tokens, log scale)"}, "type": "log"},
        yaxis={"title": {"text": "sink rate at position 0 (%)"}, "rangemode": "tozero"},
    )


def angle_table(data: xr.Dataset, position: int) -> pd.DataFrame:
    """Percent of keys in each bin of cos(q, k), each head counting once: at the position, and elsewhere."""
    cosine = data["cos_query_key"].transpose("layer", "head", "sample", "position")
    groups = {
        f"position {position} (%)": cosine.sel(position=[position]).values,
        "other positions (%)": cosine.values[..., cosine["position"].values != position],
    }
    columns = {
        name: nanmean(heads.histograms(values).reshape(-1, len(heads.BINS) - 1), 0) for name, values in groups.items()
    }
    return pd.DataFrame({"cosine from": heads.BINS[:-1].round(3), "to": heads.BINS[1:].round(3), **columns})


def angles(table: pd.DataFrame, position: int) -> go.Figure:
    """The two histograms, one over the other."""
    result = heads.angles_figure(position)
    centres = (0.5 * (table["cosine from"] + table["to"])).round(4).tolist()
    for trace, column in zip(result.data, table.columns[2:], strict=True):
        trace.update(x=centres, y=table[column].tolist())
    return result.update_layout(height=300)


def extremes(data: xr.Dataset) -> tuple[go.Figure, pd.DataFrame]:
    """Largest |entry| of the residual stream per depth: first token, largest other token; and the median entry."""
    largest = data["hidden_max"].mean("sample").transpose("depth", "position")
    others = largest.where(largest["position"] != 0)
    lines = {
        "position 0": largest.where(largest["position"] == 0).max("position").values,
        "largest other token": others.max("position").values,
    }
    if "hidden_median" in data:
        lines["median entry"] = data["hidden_median"].mean("sample").values
    return over_depth(data, lines, "|entry| of the residual stream (log scale)", log=True, sink="position 0")


def over_depth(
    data: xr.Dataset, lines: dict[str, np.ndarray], title: str, *, log: bool = False, sink: str | None = None
) -> tuple[go.Figure, pd.DataFrame]:
    """Lines over the depths, and their table.

    Args:
        data: The data of a measurement, for the labels of depths.
        lines: Up to three lines by name, each with a value per depth.
        title: Title of the vertical axis.
        log: Use a logarithmic axis.
        sink: The name of the line in the sink's color.
    """
    depths = depth_labels(data)
    result = figure(height=300, legend=len(lines) > 1)
    others = [name for name in lines if name != sink]
    colors = dict(zip(others, (BLUE, SLATE, PURPLE), strict=False))
    for index, (name, values) in enumerate(lines.items()):
        result.add_scatter(
            x=depths,
            y=[None if np.isnan(value) else float(value) for value in values],
            name=name,
            mode="lines+markers",
            line={"color": colors.get(name, SINK), "dash": DASHES[index], "width": 2.5},
            marker={"symbol": SYMBOLS[index], "size": 7},
            hovertemplate="depth %{x}: %{y:.4g}<extra>%{fullData.name}</extra>",
        )
    result.update_layout(
        xaxis={"title": {"text": "depth (blocks)"}, "type": "category"},
        yaxis={"title": {"text": title}, **({"type": "log"} if log else {})},
    )
    return result, pd.DataFrame({"depth": depths, **lines})


def bands(data: xr.Dataset) -> tuple[dict[str, go.Figure], pd.DataFrame]:
    """Share of ‖h‖² in each band of the unembedding, per depth: the first probed token, and the mean of all.

    Source: Cancedda 2024.
    """
    depths = depth_labels(data)
    shares: dict[str, xr.DataArray] = {}
    if "band_energy" in data:
        probed = data["band_energy"]
        name = f"Position {int(probed['probe_position'].values[0])}" if "probe_position" in probed.coords else "First"
        shares[name] = probed.isel(probe_position=0).mean("sample").transpose("depth", "band")
    if "band_energy_mean" in data:
        shares["Mean of all tokens"] = data["band_energy_mean"].mean("sample").transpose("depth", "band")
    figures, tables = {}, []
    for name, grid in shares.items():
        percent = 100 * grid.values
        result = figure(height=90 + max(18 * len(depths), 150), legend=False)
        result.add_heatmap(
            z=percent,
            x=[str(band + 1) for band in range(grid.sizes["band"])],
            y=depths,
            coloraxis="coloraxis",
            hovertemplate="depth %{y}, band %{x}: %{z:.2f} % of the energy<extra></extra>",
        )
        result.update_layout(
            xaxis={"title": {"text": "band, most to least visible"}, "type": "category", "showgrid": False},
            yaxis={"title": {"text": "depth (blocks)"}, "type": "category", "showgrid": False},
            coloraxis={"cmin": 0, "cmax": 100, "colorbar": {"title": {"text": "%"}}},
        )
        figures[name] = result
        columns = pd.DataFrame(percent, columns=[f"band {band + 1} (%)" for band in range(grid.sizes["band"])])
        columns.insert(0, "depth", depths)
        columns.insert(0, "tokens", name)
        tables.append(columns)
    return figures, pd.concat(tables, ignore_index=True)


def hidden_plane(data: xr.Dataset, position: int) -> tuple[go.Figure, pd.DataFrame]:
    """Hidden states in their two principal components; a slider changes the depth (Han et al. 2024).

    Components are computed for each depth, around its mean. The table has their shares of the variance.
    """
    depths = depth_labels(data)
    vectors = heads.thinned(data["hidden_vectors"], position, len(depths))
    samples, where = heads.point_labels(vectors)
    sink = heads.marked(vectors, position)
    marked = where == sink
    states = vectors.transpose("depth", "kept", "kept_position", "width").values
    projections = [principal_components(state.reshape(-1, state.shape[-1])) for state in states]
    result = heads.planar("state", sink, 420)
    coordinates = [
        {
            axis: [short(projection.points[group, index], 3) for group in (~marked, marked)]
            for index, axis in enumerate("xy")
        }
        for projection in projections
    ]
    shares = np.array([100 * projection.shares for projection in projections])
    steps = [
        {
            "label": f"{label}, components hold {first:.0f} and {second:.0f} % of the variance",
            "method": "restyle",
            "args": [shown],
        }
        for label, shown, (first, second) in zip(depths, coordinates, shares, strict=True)
    ]
    active = len(depths) // 2
    for index, (trace, group) in enumerate(zip(result.data, (~marked, marked), strict=True)):
        trace.update(
            {axis: values[index] for axis, values in coordinates[active].items()},
            customdata=np.stack([where[group], samples[group]], -1).tolist(),
        )
    slider = {"active": active, "currentvalue": {"prefix": "depth "}, "steps": steps}
    table = pd.DataFrame({"depth": depths, "first component (%)": shares[:, 0], "second component (%)": shares[:, 1]})
    return result.update_layout(sliders=[slider]), table


def longest(data: xr.Dataset) -> tuple[go.Figure, pd.DataFrame]:
    """The largest norm of any token per depth with its position, and the mean of all."""
    norms = data["hidden_norm"].mean("sample").transpose("depth", "position")
    largest = norms.fillna(-np.inf).argmax("position").values
    lines = {"largest token": norms.max("position").values, "mean of all tokens": norms.mean("position").values}
    result, table = over_depth(data, lines, "hidden norm (L2, log scale)", log=True, sink="largest token")
    table["largest at position"] = norms["position"].values[largest]
    result.data[0].update(
        customdata=table["largest at position"].tolist(),
        hovertemplate="depth %{x}: %{y:.4g}, at position %{customdata}<extra>largest token</extra>",
    )
    return result, table
