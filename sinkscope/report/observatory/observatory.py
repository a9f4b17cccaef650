"""The page that `sinkscope measure` writes: one measurement, from the headline to single heads and tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.measurements import Measurement, applicable, has_position, stack_rates, stacks_apart, strongest_position
from sinkscope.measurements.figures import counted_rates, sink_rate_by_position
from sinkscope.metrics import is_massive, nanmean
from sinkscope.report import sections
from sinkscope.report.observatory.head_section import head_section
from sinkscope.report.observatory.heads import HeadMaps
from sinkscope.report.observatory.model_sections import angle_section, depth_sections, sweep_section
from sinkscope.report.observatory.strip import strip_section
from sinkscope.report.page import Headline, Page, Section
from sinkscope.report.provenance import facts

SCRIPTS = ("selection.js", "heads.js", "detail.js", "strip.js")
STYLES = ("observatory.css",)
NEGLIGIBLE = 1e-9
"""Stands in for the magnitude where the ratio to the median shall decide alone."""
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
    position = strongest_position(data, epsilon)[0] if "attention_received" in data else 0
    parts = [
        *([head_section(data, epsilon, position, maps, map_command)] if applicable(data) else []),
        *([strip_section(data, epsilon, measurement.record)] if _has_tokens(data) else []),
        *([_definitions(definitions)] if definitions is not None and len(definitions) else []),
        *([_tokens(tokens)] if tokens is not None and len(tokens) else []),
        *([_positions(data, epsilon)] if "attention_received" in data else []),
        *([sweep_section(data)] if "attention_received_by_length" in data else []),
        *([angle_section(data, position)] if "cos_query_key" in data and has_position(data, position) else []),
        *([sections.values({"": data})] if "value_norm" in data and has_position(data, 0) else []),
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
    by_stack = {stack: counted_rates(part, epsilon) for stack, part in stacks_apart(data).items()}
    several = len(by_stack) > 1
    figures = {
        f"Sink rate, per position{f', {stack}' if several else ''}": sink_rate_by_position(rates)
        for stack, rates in by_stack.items()
    }
    tables = [rates.assign(stack=stack) if several else rates for stack, rates in by_stack.items()]
    return Section(
        "Sink rate, per position",
        "In how many (layer, head) pairs each position exceeds the threshold, with 95 % bootstrap intervals over "
        "samples. The highest is orange. In causal models, fewer than half of the tokens see the pale ones: the last "
        "few, seen by hardly any token but themselves, exceed it without being a sink.",
        figures,
        pd.concat(tables, ignore_index=True).drop(columns="counted", errors="ignore"),
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


def headlines(measurement: Measurement, epsilon: float) -> list[Headline]:
    """A card for everything that was measured; what is broken comes first."""
    data, record = measurement.data, measurement.record
    return [
        *_broken(record),
        *(_rates(data, epsilon) if "attention_received" in data else []),
        *(_slots(data) if "slot_received" in data else []),
        *(_ratios(measurement)),
        *(_massive(data) if {"hidden_top", "hidden_median"} <= {*data.data_vars} else []),
    ]


def _broken(record: dict[str, Any]) -> list[Headline]:
    found = record.get("non_finite")
    if not found:
        return []
    count = f"{found['samples']} of {record.get('samples', '?')} samples"
    return [Headline("NaN or infinite", f"activations in {count}, first at {found['first']}; they count nowhere")]


def _rates(data: xr.Dataset, epsilon: float) -> list[Headline]:
    cards = []
    if has_position(data, 0):
        rates = stack_rates(data, epsilon)
        for stack, rate in rates.items():
            interval = f"95 % interval {rate.low:.1f} to {rate.high:.1f}"
            of = f" of {stack} layers" if len(rates) > 1 else ""
            cards.append(Headline(f"{rate.value:.1f} %", f"sink rate{of} at position 0 (ε = {epsilon:g}; {interval})"))
    position, rate_there = strongest_position(data, epsilon)
    if rate_there > 0:
        cards.append(Headline(f"position {position}", f"strongest sink: in {rate_there:.1f} % of (layer, head) pairs"))
    else:
        cards.append(Headline("none", f"no position exceeds ε = {epsilon:g} in any head"))
    return cards


def _slots(data: xr.Dataset) -> list[Headline]:
    received = data["slot_received"].transpose("layer", "head", "sample").values
    mass = float(nanmean(nanmean(nanmean(received, 2), 1), 0))
    return [] if np.isnan(mass) else [Headline(f"{100 * mass:.1f} %", "of the attention goes to slots, not to tokens")]


def _ratios(measurement: Measurement) -> list[Headline]:
    data, cards = measurement.data, []
    if not has_position(data, 0):
        return []
    if "hidden_norm" in data:
        ratio = measurement.hidden_norm_ratio()
        if ratio.notnull().any():
            index = int(ratio.fillna(-np.inf).values.argmax())
            depth = int(data["depth_index"].values[index])
            cards.append(
                Headline(
                    f"{float(ratio[index]):.3g} ×", f"largest hidden norm of position 0 over others: depth {depth}"
                )
            )
    if "value_norm" in data:
        ratio = measurement.value_norm_ratio()
        if ratio.notnull().any():
            index = int(ratio.fillna(np.inf).values.argmin())
            layer = int(data["layer_index"].values[index])
            cards.append(
                Headline(
                    f"{float(ratio[index]):.3g} ×", f"smallest value norm of position 0 over others: layer {layer}"
                )
            )
    return cards


def _massive(data: xr.Dataset) -> list[Headline]:
    """Entries by both criteria (Sun et al. 2024) and by the relative one alone, as (position, dimension) pairs."""
    tops = data["hidden_top"].transpose("sample", "depth", "top").values
    median = data["hidden_median"].transpose("sample", "depth").values
    both, relative = is_massive(tops, median), is_massive(tops, median, magnitude=NEGLIGIBLE)
    return [
        Headline(
            str(_entries(data, both) or "none"),
            "massive activations (entries over 100 and 1000 × the median); over 1000 × the median alone: "
            f"{_entries(data, relative) or 'none'}",
        )
    ]


def _entries(data: xr.Dataset, found: np.ndarray) -> int:
    position = data["hidden_top_position"].transpose("sample", "depth", "top").values[found]
    dimension = data["hidden_top_dimension"].transpose("sample", "depth", "top").values[found]
    return len({*zip(position.tolist(), dimension.tolist(), strict=True)})
