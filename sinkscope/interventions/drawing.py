"""The figure of an effect."""

from __future__ import annotations

from html import escape

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from sinkscope.interventions.outcome import METRICS, Effect, Outcome

COLOURS = {"untouched": "#53606d", "control": "#0068b2", "touched": "#c9500b"}
SYMBOLS = {"untouched": "diamond", "control": "circle-open", "touched": "x"}


def effect_figure(effect: Effect) -> go.Figure:
    """See `Effect.plot`. The band behind the points is the controls' range."""
    shown = {metric: title for metric, title in METRICS.items() if getattr(effect.touched, metric) is not None}
    figure = make_subplots(cols=len(shown), horizontal_spacing=0.1, subplot_titles=list(shown.values()))
    groups = {"untouched": [effect.untouched], "control": list(effect.controls), "touched": [effect.touched]}
    for column, metric in enumerate(shown, start=1):
        values = {name: _values(outcomes, metric) for name, outcomes in groups.items()}
        for name, found in values.items():
            figure.add_scatter(
                x=[name] * len(found),
                y=found,
                mode="markers",
                name=name,
                legendgroup=name,
                showlegend=column == 1,
                marker={"color": COLOURS[name], "symbol": SYMBOLS[name], "size": 11, "line": {"width": 2}},
                cliponaxis=False,
                row=1,
                col=column,
            )
        low, high = min(values["control"]), max(values["control"])  # after the points: an empty panel takes no band
        figure.add_hrect(y0=low, y1=high, fillcolor=COLOURS["control"], opacity=0.12, line_width=0, col=column, row=1)
        figure.update_yaxes(rangemode="tozero" if metric != "loss" else "normal", row=1, col=column)
    return figure.update_layout(title=escape(f"{effect.name} on {effect.model}"), height=420)


def _values(outcomes: list[Outcome], metric: str) -> list[float]:
    return [float(getattr(outcome, metric)) for outcome in outcomes]
