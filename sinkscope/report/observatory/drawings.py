"""Figures of a whole model: the sink rate over T and ε, angles, extremes, spectra and the shape of hidden states."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from sinkscope.probes.metrics import nanmean
from sinkscope.probes.metrics.geometry import principal_components
from sinkscope.probes.metrics.sweep import EPSILONS, sweep
from sinkscope.report.layers import depth_labels
from sinkscope.report.observatory import heads, skeletons
from sinkscope.report.observatory.numbers import short
from sinkscope.report.theme import BLUE, DASHES, PURPLE, SERIES, SINK, SLATE, SYMBOLS, figure


def sweep_table(data: xr.Dataset) -> pd.DataFrame:
    """Sink rate at position 0 in percent, a row per length, a column per ε [C1]."""
    received = data["attention_received_by_length"].transpose("sample", "layer", "head", "length")
    rates = {f"ε = {epsilon:g}": rate for epsilon, rate in zip(EPSILONS, sweep(received.values, EPSILONS), strict=True)}
    return pd.DataFrame({"tokens": received["length"].values, **rates}).dropna(subset=list(rates), how="all")


def sweep_lines(table: pd.DataFrame) -> go.Figure:
    """Lines over the length, one for each ε."""
    result = figure(height=320)
    for name, colour, dash, symbol in zip(table.columns[1:], SERIES, DASHES, SYMBOLS, strict=True):
        result.add_scatter(
            x=table["tokens"].tolist(),
            y=table[name].tolist(),
            name=name,
            mode="lines+markers",
            line={"color": colour, "dash": dash},
            marker={"symbol": symbol, "size": 7},
            hovertemplate="%{x} tokens: %{y:.2f} %<extra>%{fullData.name}</extra>",
        )
    return result.update_layout(
        xaxis={"title": {"text": "length of the text (tokens, log scale)"}, "type": "log"},
        yaxis={"title": {"text": "sink rate at position 0 (%)"}, "rangemode": "tozero"},
    )


def angle_table(data: xr.Dataset, position: int) -> pd.DataFrame:
    """Percent of keys in each bin of cos(q, k), a head counting once: at the position, elsewhere, and in between."""
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
    result = skeletons.angles(position)
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
    """Up to three lines over the depths, and their table; the one named `sink` is orange."""
    depths = depth_labels(data)
    result = figure(height=300, legend=len(lines) > 1)
    others = [name for name in lines if name != sink]
    colours = dict(zip(others, (BLUE, SLATE, PURPLE), strict=False))
    for index, (name, values) in enumerate(lines.items()):
        result.add_scatter(
            x=depths,
            y=[None if np.isnan(value) else float(value) for value in values],
            name=name,
            mode="lines+markers",
            line={"color": colours.get(name, SINK), "dash": DASHES[index], "width": 2.5},
            marker={"symbol": SYMBOLS[index], "size": 7},
            hovertemplate="depth %{x}: %{y:.4g}<extra>%{fullData.name}</extra>",
        )
    result.update_layout(
        xaxis={"title": {"text": "depth (blocks)"}, "type": "category"},
        yaxis={"title": {"text": title}, **({"type": "log"} if log else {})},
    )
    return result, pd.DataFrame({"depth": depths, **lines})


def bands(data: xr.Dataset) -> tuple[dict[str, go.Figure], pd.DataFrame]:
    """Share of ‖h‖² in each band of the unembedding, per depth: the first probed token, and the mean of all [X10]."""
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
    """Hidden states in their two principal components; a slider leads through the depths [X4].

    Each depth has components of its own, around its own mean. The table gives their shares of the variance.
    """
    depths = depth_labels(data)
    vectors = heads.thinned(data["hidden_vectors"], position, len(depths))
    samples, where = heads.point_labels(vectors)
    sink = heads.marked(vectors, position)
    marked = where == sink
    states = vectors.transpose("depth", "kept", "kept_position", "width").values
    found = [principal_components(state.reshape(-1, state.shape[-1])) for state in states]
    result = skeletons.planar("state", sink, 420)
    coordinates = [
        {
            axis: [short(projection.points[group, index], 3) for group in (~marked, marked)]
            for index, axis in enumerate("xy")
        }
        for projection in found
    ]
    shares = np.array([100 * projection.shares for projection in found])
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
    """The largest norm of any single token per depth, beside the mean of all, with where it stands."""
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
