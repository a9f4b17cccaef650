"""The page that `sinkscope measure` writes: one measurement, from the headline to single heads and tokens."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.probes import Measurement
from sinkscope.report import figures, sections
from sinkscope.report.observatory import drawings
from sinkscope.report.observatory.depth_section import depth_sections
from sinkscope.report.observatory.head_section import head_section
from sinkscope.report.observatory.headlines import headlines
from sinkscope.report.observatory.heads import HeadMaps
from sinkscope.report.observatory.per_head import present
from sinkscope.report.observatory.places import rates, strongest
from sinkscope.report.observatory.strip import strip_section
from sinkscope.report.page import Page, Section
from sinkscope.report.provenance import facts
from sinkscope.report.rates import rates_by_position

SCRIPTS = ("selection.js", "heads.js", "detail.js", "strip.js")
STYLES = ("observatory.css",)
DEFINITION_TITLES = {
    "sinks": "sinks in a sample",
    "position_0": "position 0 is one (% of samples)",
    "elsewhere": "most frequent other position",
    "elsewhere_share": "which is one (%)",
    "agreement": "agreement",
}


def observatory_page(
    measurement: Measurement,
    title: str,
    epsilon: float,
    maps: HeadMaps | None = None,
    *,
    definitions: pd.DataFrame | None = None,
    tokens: pd.DataFrame | None = None,
    map_command: str | None = None,
) -> Page:
    """The page; each section is there where the measurement has its variables.

    `maps`: attention maps of chosen heads; `map_command` with "layer.head" behind it is the command that makes one.
    `definitions`: the table of sink definitions side by side; `tokens`: which tokens become sinks. Raises `InputError`
    for an epsilon outside (0, 1) and for maps of heads that were not measured.
    """
    data = measurement.data
    position = strongest(data, epsilon)[0] if "attention_received" in data else 0
    parts = [
        *([head_section(data, epsilon, position, maps, map_command)] if present(data) else []),
        *([strip_section(data, epsilon, measurement.record)] if _has_tokens(data) else []),
        *([_definitions(definitions)] if definitions is not None and len(definitions) else []),
        *([_tokens(tokens)] if tokens is not None and len(tokens) else []),
        *([_positions(data, epsilon)] if "attention_received" in data else []),
        *([_sweep(data)] if "attention_received_by_length" in data else []),
        *([_angles(data, position)] if "cos_query_key" in data and position in data["position"].values else []),
        *([sections.values({"": data})] if "value_norm" in data and 0 in data["position"].values else []),
        *depth_sections(data, position),
    ]
    lead = (
        f"A sink is a token that receives more than ε = {epsilon:g} of the attention of a head, on average over the "
        "tokens that see it. This page shows where this model has one, in which heads, and by which mechanism. "
        "Positions, layers and heads count from 0."
    )
    return Page(
        title,
        lead,
        headlines(measurement, epsilon),
        parts,
        facts([], {title: measurement.record}),
        SCRIPTS,
        STYLES,
    )


def _has_tokens(data: xr.Dataset) -> bool:
    return "attention_received" in data and "token_id" in data.coords


def _positions(data: xr.Dataset, epsilon: float) -> Section:
    frame = rates_by_position(data, epsilon)
    counted = ~np.isnan(rates(data, epsilon))
    shown = frame.assign(counted=counted) if counted.any() else frame
    return Section(
        "Sink rate, per position",
        "In how many (layer, head) pairs each position exceeds the threshold, with 95 % bootstrap intervals over "
        "samples. The highest is orange. In causal models, fewer than half of the tokens see the pale ones: the last "
        "few, seen by hardly any token but themselves, exceed it without being a sink.",
        {"Sink rate, per position": figures.sink_rate_by_position(shown)},
        frame,
    )


def _definitions(table: pd.DataFrame) -> Section:
    return Section(
        "Every definition of a sink",
        "The published rules, applied to the same forward passes: how many tokens of a sample each calls a sink, and "
        "how far they agree with the first, as the share of tokens that both name among those that either does.",
        table=table.rename(columns=DEFINITION_TITLES),
        unfolded=True,
    )


def _tokens(table: pd.DataFrame) -> Section:
    return Section(
        "Which tokens become sinks",
        "Tokens that receive more than ε somewhere, by their text, over all samples. Where not only the first position "
        "is listed, the model has sinks that depend on what a token says.",
        table=table,
        unfolded=True,
    )


def _sweep(data: xr.Dataset) -> Section:
    table = drawings.sweep_table(data)
    return Section(
        "The sink rate over length and threshold",
        "The same measurement read at shorter lengths and other thresholds: a strong sink keeps its rate as ε grows; "
        "that it falls with the length is the rule.",
        {"Sink rate over length": drawings.sweep_lines(table)},
        table,
    )


def _angles(data: xr.Dataset, position: int) -> Section:
    table = drawings.angle_table(data, position)
    return Section(
        "Angles between queries and keys, all heads",
        f"The cosine of keys with the queries that see them, at position {position} (orange) and elsewhere (blue, "
        "hatched); each head counts once. Orange far to the right of blue: the sink's key points where queries look.",
        {"Angles between queries and keys, all heads": drawings.angles(table, position)},
        table,
    )
