"""The page of the theory checks: the verdicts, and two pictures of them.

Source: Gu et al. 2025, appendix B; Barbero et al. 2025.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

import pandas as pd
import plotly.graph_objects as go

from sinkscope.report.page import Headline, Page, Section
from sinkscope.report.writing import claims_section
from sinkscope.statistics.claims import Verdict
from sinkscope.theme import DASHES, SERIES, SINK, SYMBOLS, figure
from sinkscope_replication.theory import Curve

EPSILON = 0.3
SCHEMES = {
    "none": "no positions",
    "relative_t5": "relative, T5",
    "relative_paper": "relative, the paper's",
    "alibi": "ALiBi",
    "rotary": "rotary",
}


def theory_page(
    verdicts: Mapping[str, Sequence[Verdict]],
    sinks: Sequence[Curve],
    spreads: Sequence[Curve],
    versions: Mapping[str, str],
) -> Page:
    """The page of verdicts by topic, with alpha_1 over context lengths and the spread of tokens over depth."""
    every = [verdict for group in verdicts.values() for verdict in group]
    lead = (
        "Closed forms and identities against the code: each claim has a tolerance that decides it, and "
        "is tried on lab models with random weights. Nothing here was trained."
    )
    holding = sum(verdict.grade == "confirmed" for verdict in every)
    tables = [claims_section(topic, group) for topic, group in verdicts.items()]
    headlines = [Headline(f"{holding} of {len(every)}", "claims confirmed")]
    provenance = {"versions": " · ".join(f"{name} {version}" for name, version in versions.items())}
    return Page("Theory against the code", lead, headlines, [_sinks(sinks), _spreads(spreads), *tables], provenance)


def sinks_figure(curves: Sequence[Curve]) -> go.Figure:
    """alpha_1 against T on logarithmic axes: closed forms as lines, measurements as marks, the threshold in orange."""
    result = figure(height=420)
    for index, curve in enumerate(curves):
        color = SERIES[index % len(SERIES)]
        name = escape(SCHEMES.get(curve.name, curve.name))
        result.add_scatter(
            x=curve.x,
            y=curve.expected,
            name=name,
            legendgroup=name,
            mode="lines",
            line={"color": color, "width": 2, "dash": DASHES[index % len(DASHES)]},
            hovertemplate="T = %{x}: %{y:.4f}<extra>%{fullData.name}, closed form</extra>",
        )
        result.add_scatter(
            x=curve.x,
            y=curve.found,
            name=name,
            legendgroup=name,
            showlegend=False,
            mode="markers",
            marker={"color": color, "size": 8, "symbol": SYMBOLS[index % len(SYMBOLS)]},
            hovertemplate="T = %{x}: %{y:.4f}<extra>%{fullData.name}, measured</extra>",
        )
    result.add_hline(y=EPSILON, line={"color": SINK, "width": 1.5, "dash": "dot"})
    result.add_annotation(text=f"ε = {EPSILON:g}", xref="paper", x=1, y=math.log10(EPSILON), yshift=9, xanchor="right")
    lengths = list(curves[0].x) if curves else []
    return result.update_layout(
        xaxis={"title": {"text": "tokens of the context, T"}, "type": "log", "tickvals": lengths},
        yaxis={"title": {"text": "attention to the first token, alpha_1"}, "type": "log", "dtick": 1},
    )


def spread_figure(curves: Sequence[Curve]) -> go.Figure:
    """mu(V) / ‖V‖ against depth, a line for each strength of the sink."""
    result = figure(height=360)
    for index, curve in enumerate(curves):
        result.add_scatter(
            x=curve.x,
            y=curve.found,
            name=escape(curve.name),
            mode="lines+markers",
            line={"color": SERIES[index % len(SERIES)], "width": 2, "dash": DASHES[index % len(DASHES)]},
            marker={"size": 6, "symbol": SYMBOLS[index % len(SYMBOLS)]},
            hovertemplate="layer %{x}: %{y:.3f}<extra>%{fullData.name}</extra>",
        )
    return result.update_layout(
        xaxis={"title": {"text": "layers of uniform attention"}},
        yaxis={"title": {"text": "relative spread of the tokens, mu(V) / ‖V‖"}, "range": [0, 1.02]},
    )


def _sinks(curves: Sequence[Curve]) -> Section:
    frame = pd.DataFrame(
        [
            (SCHEMES.get(curve.name, curve.name), length, found, expected)
            for curve in curves
            for length, found, expected in zip(curve.x, curve.found, curve.expected or curve.found, strict=True)
        ],
        columns=["positions", "T", "measured", "closed form"],
    )
    return Section(
        "A repeated token",
        "How much attention the first token receives when all tokens are the same, mean over layers and heads: lines "
        "are closed forms, marks are measured on lab models with random weights. The dotted line is the sink metric's "
        "threshold. Every scheme falls with the context; the paper's relative positions pass it only beyond 64 tokens.",
        {"Attention to the first of equal tokens": sinks_figure(curves)},
        frame,
    )


def _spreads(curves: Sequence[Curve]) -> Section:
    frame = pd.DataFrame({"layer": curves[0].x if curves else (), **{curve.name: curve.found for curve in curves}})
    return Section(
        "Rank collapse, and what slows it",
        "Layers of uniform attention with a residual stream, tokens kept at length one: the tokens turn toward one "
        "direction. A sink without a value takes attention that would have mixed them; the stronger it is, the longer "
        "they stay apart.",
        {"Spread of the tokens over depth": spread_figure(curves)},
        frame,
    )
