"""The page that `sinkscope measure` writes: one measurement, from the headline to single heads and tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.measurement import (
    Measurement,
    SlotMass,
    applicable,
    depth_labels,
    has_position,
    layer_labels,
    rates_by_position,
    slot_mass,
    stack_rates,
    stacks_apart,
    strongest_position,
)
from sinkscope.measurement.depths import TOP
from sinkscope.measurement.finding import INTERVENE, answer
from sinkscope.measurement.rates import interval_words, rate_words
from sinkscope.report import sections
from sinkscope.report.observatory.head_section import KINDS, head_section
from sinkscope.report.observatory.heads import HeadMaps
from sinkscope.report.observatory.model_sections import angle_section, depth_sections, sweep_section
from sinkscope.report.observatory.strip import strip_section
from sinkscope.report.page import Headline, Page, Section
from sinkscope.report.provenance import facts

SCRIPTS = ("selection.js", "heads.js", "detail.js", "strip.js")
STYLES = ("observatory.css",)
NEGLIGIBLE = 1e-9
"""A magnitude that every entry exceeds, so that only the ratio to the median decides."""
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
    intervene: str = INTERVENE,
) -> Page:
    """The page of a measurement: the answer, then the evidence by question; a section needs its variables.

    Args:
        measurement: what was measured.
        title: the page's title.
        epsilon: the share of attention above which a token is a sink.
        maps: attention maps of chosen heads.
        definitions: the table that compares definitions of a sink.
        tokens: the table of tokens that become sinks.
        map_command: the command line that, followed by "layer.head", adds an attention map.
        intervene: the command line that tests whether this model's sink matters.

    Raises `InputError` for an epsilon outside (0, 1) and for maps of heads that were not measured.
    """
    data = measurement.data
    position = sink_position(data, epsilon)
    heads = [head_section(data, epsilon, position, maps, map_command)] if applicable(data, position) else []
    places = [
        *(
            [strip_section(data, epsilon, measurement.record)]
            if "attention_received" in data and "token_id" in data.coords
            else []
        ),
        *([_tokens(tokens)] if tokens is not None and len(tokens) else []),
        *([_positions(data, epsilon)] if "attention_received" in data else []),
    ]
    strengths = [
        *([_definitions(definitions)] if definitions is not None and len(definitions) else []),
        *([sweep_section(data)] if "attention_received_by_length" in data else []),
    ]
    mechanism = [
        *([angle_section(data, position)] if "cos_query_key" in data and has_position(data, position) else []),
        *([sections.values({"": data})] if "value_norm" in data and has_position(data, 0) else []),
        *depth_sections(data, position),
    ]
    answers = {
        "In which heads?": heads,
        "At which tokens?": places,
        "By which definition, and how firmly?": strengths,
        "By which mechanism?": mechanism,
    }
    parts = [replace(section, question=question) for question, group in answers.items() for section in group]
    lead = (
        f"A sink is a token that receives more than ε = {epsilon:g} of the attention of a head, on average over the "
        "tokens that see it. This page shows where this model has one, in which heads, and by which mechanism. "
        f"Positions, layers and heads count from 0.{f' {KINDS}' if heads else ''}"
    )
    return Page(
        title,
        lead,
        headlines(measurement, epsilon),
        parts,
        facts([], {title: measurement.record}),
        SCRIPTS,
        STYLES,
        answer(measurement.data, epsilon, intervene),
        bool(heads),
    )


def sink_position(data: xr.Dataset, epsilon: float) -> int:
    """The position of the sink: the strongest position, or the first measured one if there is none."""
    if "attention_received" not in data:
        return 0
    strongest = strongest_position(data, epsilon)
    return int(data["position"].values[0]) if strongest is None else strongest.position


def _positions(data: xr.Dataset, epsilon: float) -> Section:
    by_stack = stacks_apart(data)
    title = "Sink rate, per position"
    return sections.positions(
        {
            title if len(by_stack) == 1 else f"{title}, {stack}": rates_by_position(part, epsilon)
            for stack, part in by_stack.items()
        }
    )


def _definitions(table: pd.DataFrame) -> Section:
    return Section(
        "Every definition of a sink",
        "The published rules, applied to the same forward passes: how many tokens of a sample each calls a sink, and "
        "how far it agrees with the first, as the share of tokens that both name among those that either names.",
        table=table.rename(columns=DEFINITION_TITLES),
        unfolded=True,
    )


def _tokens(table: pd.DataFrame) -> Section:
    return Section(
        "Which tokens become sinks",
        "Tokens that receive more than ε in some head, by their text, over all samples. If other positions than the "
        "first are listed, the model has sinks that depend on a token's text.",
        table=table,
        unfolded=True,
    )


def headlines(measurement: Measurement, epsilon: float) -> list[Headline]:
    """One card per quantity that was measured; NaN and infinities come first."""
    data, record = measurement.data, measurement.record
    return [
        *_broken(record),
        *(_rates(data, epsilon) if "attention_received" in data else []),
        *([] if (mass := slot_mass(data, epsilon)) is None else [slot_card(mass)]),
        *_ratios(measurement),
        *(_massive(measurement) if {*TOP} <= {*data.data_vars} else []),
    ]


def _broken(record: dict[str, Any]) -> list[Headline]:
    broken = record.get("non_finite")
    if not broken:
        return []
    count = f"{broken['samples']} of {record.get('samples', '?')} samples"
    return [Headline("NaN or infinite", f"activations in {count}, first at {broken['first']}; no number counts them")]


def _rates(data: xr.Dataset, epsilon: float) -> list[Headline]:
    cards = []
    if has_position(data, 0):
        rates = stack_rates(data, epsilon)
        for stack, rate in rates.items():
            interval = interval_words(rate.low, rate.high, data.sizes["sample"])
            where = f" of {stack} layers" if len(rates) > 1 else ""
            about = f"sink rate{where} at position 0 (ε = {epsilon:g}; {interval})"
            cards.append(Headline(rate_words(data, rate.value, epsilon, 0, stack), about))
    strongest = strongest_position(data, epsilon)
    if strongest is None:
        about = "strongest sink: no position that more than half of the tokens see has a number"
        cards.append(Headline("unknown", about))
    elif strongest.rate > 0:
        about = f"strongest sink: in {strongest.rate:.1f} % of (layer, head) pairs"
        cards.append(Headline(f"position {strongest.position}", about))
    else:
        cards.append(Headline("none", f"no position exceeds ε = {epsilon:g} in any head"))
    return cards


def slot_card(slots: SlotMass, name: str = "") -> Headline:
    """The mass on slots; `name` of the measurement if there are several."""
    known = not np.isnan(slots.mass.value)
    where = "" if slots.layers == slots.of or not known else f", in {slots.layers} of {slots.of} layers"
    value = f"{100 * slots.mass.value:.1f} %" if known else "unknown"
    return Headline(value, f"of the attention goes to slots, not to tokens{where}{f': {name}' if name else ''}")


def _ratios(measurement: Measurement) -> list[Headline]:
    data, cards = measurement.data, []
    if not has_position(data, 0):
        return []
    if "hidden_norm" in data:
        ratio = measurement.hidden_norm_ratio()
        if ratio.notnull().any():
            index = int(ratio.fillna(-np.inf).values.argmax())
            depth = depth_labels(data)[index]
            cards.append(
                Headline(
                    f"{float(ratio[index]):.3g} ×", f"largest hidden norm of position 0 over others: depth {depth}"
                )
            )
    if "value_norm" in data:
        ratio = measurement.value_norm_ratio()
        if ratio.notnull().any():
            index = int(ratio.fillna(np.inf).values.argmin())
            layer = layer_labels(data)[index]
            cards.append(
                Headline(
                    f"{float(ratio[index]):.3g} ×", f"smallest value norm of position 0 over others: layer {layer}"
                )
            )
    return cards


def _massive(measurement: Measurement) -> list[Headline]:
    """Entries by both criteria (Sun et al. 2024) and by the relative one alone, as (position, dimension) pairs."""
    if not measurement.data["hidden_median"].notnull().any():
        return [Headline("unknown", "massive activations: all hidden states are NaN or infinite")]
    both, relative = measurement.massive_activations(), measurement.massive_activations(magnitude=NEGLIGIBLE)
    return [
        Headline(
            _count(both),
            "massive activations (entries over 100 and 1000 × the median); over 1000 × the median alone: "
            f"{_count(relative)}",
        )
    ]


def _count(entries: pd.DataFrame) -> str:
    """The number of entries; "at least" if a row had more than were kept."""
    return "none" if entries.empty else f"{'' if entries['complete'].all() else 'at least '}{len(entries)}"
