"""The section of linked maps: every metric of every head, and a panel with the selected head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from sinkscope.measurement import HEAD_METRICS, HeadMetric, applicable, head_table, layer_labels
from sinkscope.report.observatory import heads
from sinkscope.report.observatory.heads import HeadMaps
from sinkscope.report.observatory.numbers import short
from sinkscope.report.page import Section, Widget
from sinkscope.theme import BELOW, BLUE, ORANGE, SEQUENTIAL, threshold_scale

DATA = "heads-data"
CHIEF = ("alpha", "sink", "slot", "value_ratio", "key_ratio", "cos_sink", "sink_output_norm")
"""Metrics whose maps show where a sink is and by which mechanism; the others are in a menu."""
CHOICES = 8
ROWS = 40  # heads in the table: those in which the position receives most
KINDS = "A head is " + next(metric.about for metric in HEAD_METRICS if metric.name == "kind")
NEGLIGIBLE = 1e-6
"""The rounding error of statistics in single precision near 1: no color scale ends below it."""


def head_section(
    data: xr.Dataset, epsilon: float, position: int, maps: HeadMaps | None, map_command: str | None
) -> Section:
    """Every metric of every head as linked maps, with a panel for the selected head.

    Args:
        data: The data of a measurement.
        epsilon: The attention, 0 to 1, above which a head has a sink.
        position: The position of the sink.
        maps: Attention maps of some heads; None for none.
        map_command: The command line that adds a map if "layer.head" is appended; None to show none.
    """
    if maps is not None:
        maps.check(data)
    positions = choices(data, position)
    here = positions.index(position)
    grids = {
        metric: metric.at(data, epsilon, positions if metric.positioned else [position])
        for metric in applicable(data, position)
    }
    payload: dict[str, Any] = {
        "layers": layer_labels(data),
        "heads": data.sizes["head"],
        "positions": positions,
        "index": here,
        "epsilon": epsilon,
        "metrics": [
            _payload(metric, values, epsilon)
            for metric, values in grids.items()
            if metric.draw is not None and np.isfinite(values).any()
        ],
        "start": start(data, position),
        "mapCommand": map_command,
    }
    figures: dict[str, go.Figure] = {}
    if "attention_received" in data:
        payload["profile"] = heads.profile(data, positions)
        figures[heads.PROFILE] = heads.profile_figure(epsilon)
    if "cos_query_key" in data and position in data["position"].values:
        payload["angles"] = heads.angles(data, position)
        figures[heads.ANGLES] = heads.angles_figure(position)
    if "key_vectors" in data:
        payload["keys"] = heads.keys(data, position)
        figures[heads.KEYS] = heads.keys_figure(heads.marked(data["key_vectors"], position))
    if maps is not None and maps.weights:
        payload["maps"] = maps.payload(data)
        figures[heads.MAP] = heads.map_figure()
    names = ("profile", "angles", "keys", "map")
    titles = (heads.PROFILE, heads.ANGLES, heads.KEYS, heads.MAP)
    payload["figures"] = {name: title for name, title in zip(names, titles, strict=True) if title in figures}
    many = "attention_received" in data and data.sizes["layer"] * data.sizes["head"] > ROWS
    cut = f" The table has the {ROWS} heads in which the position receives most; heads.csv has all." if many else ""
    return Section(
        "Every head, by every metric",
        "In each map, a column is a head and a row a layer, the first layer at the bottom; values are means over "
        f"samples. {KINDS} Click on a head, or move with the arrow keys: the head is framed in all maps, and its "
        f"details are shown.{cut}",
        figures,
        _strongest(
            data, {metric: values[here if metric.positioned else 0] for metric, values in grids.items()}, position
        ),
        widget=Widget("heads.html", {DATA: payload}),
    )


def choices(data: xr.Dataset, position: int) -> list[int]:
    """The positions that a reader can choose: the first 8 and that of the sink."""
    measured = data["position"].values[:CHOICES].tolist() if "position" in data.coords else []
    return sorted({*measured, position})


def start(data: xr.Dataset, position: int) -> list[int]:
    """The head selected at first: the one with the most attention on the position, or the first measured one."""
    name = "attention_received"
    if name not in data:
        return [0, 0]
    received = data[name].sel(position=position).transpose("sample", "layer", "head")
    grid = np.nan_to_num(received.mean("sample").values, nan=-1.0)
    return [int(index) for index in np.unravel_index(grid.argmax(), grid.shape)]


def _strongest(data: xr.Dataset, values: Mapping[HeadMetric, np.ndarray], position: int) -> pd.DataFrame:
    """The table of heads with column names for readers; of many heads, those in which the position receives most."""
    frame = head_table(data, values)
    rows = zip(data["stack"].values, data["layer_index"].values, strict=True)
    labels = dict(zip(rows, layer_labels(data), strict=True))
    frame["layer"] = [labels[key] for key in zip(frame["stack"], frame["layer"], strict=True)]
    if len(frame) > ROWS and "alpha" in frame:
        frame = frame.nlargest(ROWS, "alpha")
    return frame.drop(columns="stack").rename(columns={metric.name: metric.heading(position) for metric in values})


def _payload(metric: HeadMetric, grids: np.ndarray, epsilon: float) -> dict[str, Any]:
    return {
        "key": metric.name,
        "title": metric.title,
        "chief": metric.name in CHIEF,
        "about": f"{metric.about} {metric.formula} ({metric.source}).",
        "unit": metric.unit,
        "positioned": metric.positioned,
        "scale": scale(metric, grids, epsilon),
        "values": short(grids),
    }


def scale(metric: HeadMetric, grids: np.ndarray, epsilon: float) -> dict[str, Any]:
    """The ends of the color scale, and its colors; with `log`, colors follow the logarithm of a ratio."""
    known = grids[np.isfinite(grids)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    both = [[0, BLUE], [0.5, BELOW[0]], [1, ORANGE]]
    if metric.draw == "share":
        return {"low": 0.0, "high": 1.0, "colors": threshold_scale(epsilon)}
    if metric.draw == "ratio":
        positive = known[known > 0]
        reach = float(np.abs(np.log2(positive)).max(initial=0.0)) if positive.size else 0.0
        bound = 2.0 ** min(max(reach, 0.1), 10.0)
        return {"low": short(np.array(1 / bound)), "high": short(np.array(bound)), "colors": both, "log": True}
    if metric.draw == "signed":
        bound = max(abs(low), abs(high))
        bound = bound if bound > NEGLIGIBLE else 1.0
        return {"low": short(np.array(-bound)), "high": short(np.array(bound)), "colors": both}
    steps = [[index / (len(SEQUENTIAL) - 1), color] for index, color in enumerate(SEQUENTIAL)]
    least = NEGLIGIBLE * (100 if metric.unit == "%" else 1)
    low = low if low < -least else 0.0
    high = high if high - low > least else low + 1.0  # the scale of a map with zeros only
    return {"low": short(np.array(low)), "high": short(np.array(high)), "colors": steps}
