"""A measurement as a figure."""

from __future__ import annotations

from html import escape

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from sinkscope.probes import metrics
from sinkscope.probes.measurements.measurement import Measurement


def sink_figure(measurement: Measurement, epsilon: float) -> go.Figure:
    """See `Measurement.plot`."""
    rate = measurement.sink_rate(epsilon)
    positions = rate["position"].values.tolist()
    low, high = metrics.bootstrap(metrics.sample_rates(measurement.data["attention_received"].values, epsilon))
    figure = make_subplots(
        cols=2, subplot_titles=(f"Sink rate (ε = {epsilon})", f"Attention received, position {positions[0]}")
    )
    errors = {"symmetric": False, "array": (high - rate.values).tolist(), "arrayminus": (rate.values - low).tolist()}
    figure.add_scatter(x=positions, y=rate.values.tolist(), error_y=errors, mode="lines+markers", row=1, col=1)
    figure.add_heatmap(
        z=_by_head(measurement), y=_labels(measurement), zmin=0, zmax=1, colorscale="Viridis", row=1, col=2
    )
    figure.update_xaxes(title="position", row=1, col=1)
    figure.update_yaxes(title="heads that exceed ε, %", rangemode="tozero", row=1, col=1)
    figure.update_xaxes(title="head", row=1, col=2)
    figure.update_yaxes(title="layer", type="category", row=1, col=2)
    return figure.update_layout(showlegend=False, title=_title(measurement))


def _by_head(measurement: Measurement) -> list[list[float]]:
    """alpha of the first measured position, averaged over samples, (layer, head)."""
    first = measurement.data["attention_received"].values[..., 0]
    return metrics.nanmean(first, 0).tolist()


def _labels(measurement: Measurement) -> list[str]:
    data = measurement.data
    several = len(set(data["stack"].values.tolist())) > 1
    pairs = zip(data["stack"].values, data["layer_index"].values, strict=True)
    return [f"{stack} {index}" if several else str(index) for stack, index in pairs]


def _title(measurement: Measurement) -> str:
    record = measurement.record
    return escape(f"{record['model']}: {record['samples']} samples, up to {record['tokens']} tokens")
