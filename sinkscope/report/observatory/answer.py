"""The answer above everything else: is there a sink, where, by which mechanism, and does it matter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.measurements import Measurement, has_position, layer_labels, slot_mass, strongest_position
from sinkscope.metrics import layer_rates, nanmean

INTERVENE = "sinkscope intervene MODEL"
SOME = 3  # layers that are named one by one
SHORT, LONG = 0.5, 2.0
"""A value is called short, and a hidden state large, below and above these ratios to the others."""
CONSTANT = 0.9
"""From this share of its energy in its mean on, what a sink adds is called nearly the same for every token."""


def answer(measurement: Measurement, epsilon: float, intervene: str = INTERVENE) -> list[str]:
    """Three sentences, as far as the measurement has what they are made of.

    The first says whether and where, by the sink rate (Gu et al. 2025), and whether a head rests there on average or
    only in a sample now and then; the second how the sink's values, keys and
    hidden state differ from the others'; the third whether it matters: how much of what its heads add comes from it, as
    far as that was observed (`SinkUpdate`), and, since no measurement says whether the model needs that, the command
    that does: `intervene`, with an intervention behind it.
    """
    data = measurement.data
    if "attention_received" not in data:
        return []
    found = strongest_position(data, epsilon)
    if found is None:
        unknown = "Whether there is a sink is unknown: no position that more than half of the tokens see has a number."
        return [unknown, *_slots(data, epsilon)]
    if not found.rate > 0:
        no = f"No: on this input no position receives more than ε = {epsilon:g} of the attention of any head."
        return [" ".join([no, *_slots(data, epsilon)])]
    command = f"{intervene} --what forbid-sink{f' --position {found.position}' if found.position else ''}"
    chosen, who = _heads(measurement, found.position, epsilon)
    where = _where(data, found.position, found.rate, epsilon, bool((chosen["alpha"] > epsilon).any()))
    return [
        " ".join([where, *_slots(data, epsilon)]),
        _mechanism(measurement, chosen, who, found.position),
        _matters(chosen, command),
    ]


def _where(data: xr.Dataset, position: int, rate: float, epsilon: float, rests: bool) -> str:
    """`rests`: whether a head gives the position more than epsilon on average, not in a sample now and then."""
    column = data["position"].values.tolist().index(position)
    by_layer = nanmean(layer_rates(data["attention_received"].transpose(*_ORDER).values, epsilon), 0)[:, column]
    layers = [label for label, value in zip(layer_labels(data), by_layer, strict=True) if value > 0]
    few = f"in layer{'s' if len(layers) > 1 else ''} {_joined(layers)}"
    places = few if len(layers) <= SOME else f"in {len(layers)} of {len(by_layer)} layers, first in {layers[0]}"
    if not rests:
        return (
            f"Hardly: on average over samples no head gives a position more than ε = {epsilon:g} of its attention; "
            f"position {position} receives that in {rate:.1f} % of (sample, layer, head), {places}."
        )
    return (
        f"Yes: position {position} receives more than ε = {epsilon:g} of the attention in {rate:.1f} % of "
        f"(layer, head) pairs, {places}."
    )


_ORDER = ("sample", "layer", "head", "position")


def _heads(measurement: Measurement, position: int, epsilon: float) -> tuple[pd.DataFrame, str]:
    """The heads that rest on a position, or the one that comes nearest, and how to speak of them."""
    heads = measurement.heads(epsilon, position)
    resting = heads[heads["alpha"] > epsilon]
    if not len(resting):
        return heads.nlargest(1, "alpha"), "In the head that comes nearest"
    one = len(resting) == 1
    return resting, "In the one head that rests on it" if one else f"In the {len(resting)} heads that rest on it"


def _mechanism(measurement: Measurement, chosen: pd.DataFrame, who: str, position: int) -> str:
    facts = [
        _ratio(
            chosen, "value_ratio", "its value is {} as long as the others'", SHORT, ", so that attention adds little"
        ),
        _ratio(chosen, "key_ratio", "its key {} as long", 0.0, ""),
        _cosine(chosen),
    ]
    parts = [fact for fact in facts if fact]
    state = _state(measurement, position)
    if not parts:
        return f"By which mechanism is not known: values and keys were not observed.{f' Its {state}.' if state else ''}"
    kinds = _kinds(chosen)
    return f"{who}{f' ({kinds})' if kinds else ''}, {_joined(parts)}{f'; its {state}' if state else ''}."


def _matters(chosen: pd.DataFrame, command: str) -> str:
    """What these heads take from the sink beside all else, as mean lengths over queries, and what tells the rest."""
    asked = f"“{command}” hides it, beside random controls."
    if not {"sink_output_norm", "rest_output_norm"} <= {*chosen.columns}:
        return f"Whether the model needs it, no measurement says: {asked}"
    ratio = (chosen["sink_output_norm"] / chosen["rest_output_norm"]).replace(np.inf, np.nan)
    if ratio.isna().any():
        return f"Whether the model needs it, no measurement says: {asked}"
    take, sink = ("they take", "it") if len(chosen) > 1 else ("it takes", "the sink")
    times = _times(ratio.min(), ratio.max())
    said = f"What {take} from {sink} is {times} as long as what {take} from all else"
    constant = chosen.get("sink_output_constancy")
    if constant is not None and constant.min() >= CONSTANT:
        said += ", and nearly the same for every token, like a bias"
    return f"{said}; whether the model needs that, no measurement says: {asked}"


def _ratio(chosen: pd.DataFrame, name: str, wording: str, least: float, remark: str) -> str:
    if name not in chosen or chosen[name].isna().all():
        return ""
    low, high = chosen[name].min(), chosen[name].max()
    return f"{wording.format(_times(low, high))}{remark if high < least else ''}"


def _times(low: float, high: float) -> str:
    one, other = f"{low:.2g}", f"{high:.2g}"
    return f"{one} times" if one == other else f"{one} to {other} times"


def _cosine(chosen: pd.DataFrame) -> str:
    if not {"cos_sink", "cos_others"} <= {*chosen.columns} or chosen["cos_sink"].isna().all():
        return ""
    sink, others = chosen["cos_sink"].mean(), chosen["cos_others"].mean()
    return f"queries meet its key at a cosine of {sink:.2f} (other keys {others:.2f})"


def _state(measurement: Measurement, position: int) -> str:
    data = measurement.data
    if position != 0 or "hidden_norm" not in data or not has_position(data, 0):
        return ""
    ratio = measurement.hidden_norm_ratio()
    if not bool(ratio.notnull().any()):
        return ""
    index = int(ratio.fillna(-np.inf).values.argmax())
    size = float(ratio[index])
    if size < LONG:
        return f"hidden state is nowhere more than {size:.2g} times as long as the others'"
    return (
        f"hidden state grows to {size:.2g} times the others' length, at depth {int(data['depth_index'].values[index])}"
    )


def _kinds(chosen: pd.DataFrame) -> str:
    if "kind" not in chosen:
        return ""
    counts = chosen["kind"].dropna().value_counts()
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def _slots(data: xr.Dataset, epsilon: float) -> list[str]:
    found = slot_mass(data, epsilon)
    if found is None or np.isnan(found.mass.value):
        return []
    return [f"Of the attention, {100 * found.mass.value:.1f} % goes to slots, which are no tokens."]


def _joined(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
