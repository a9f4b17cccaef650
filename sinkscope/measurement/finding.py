"""The finding in words: whether there is a sink, where, in which layers, by which mechanism, and whether it matters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float

from sinkscope.measurement.head_metrics import head_table, head_values
from sinkscope.measurement.metrics import layer_rates, nanmean, over_others
from sinkscope.measurement.rates import hidden_norm_ratio, rate_words, received
from sinkscope.measurement.selection import TokenView, column_of, has_position, layer_labels
from sinkscope.measurement.slots import slot_mass
from sinkscope.measurement.strongest import strongest_position
from sinkscope.sinks import exceeds

INTERVENE = "sinkscope intervene MODEL"
LOST = 2  # largest number of collapses that is reported
SOME = 3  # at most this many layers are named individually
SHORT, LONG = 0.5, 2.0
"""Below and above these ratios to the others, a value is called short, and a hidden state large."""
CONSTANT = 0.9
"""If the mean holds this share of the energy, a sink's contribution is called nearly the same for every token."""


def answer(data: xr.Dataset, epsilon: float, intervene: str = INTERVENE) -> list[str]:
    """Up to three sentences, as far as the measurement has the data.

    The first says whether there is a sink and where, by the sink rate (Gu et al. 2025), and whether heads attend to it
    on average or only in some samples. The second says how the sink's values, keys and hidden state differ from the
    others'. The third says how much of its heads' output comes from it, if observed (`SinkUpdate`), and names the
    command that tests whether the model needs it, which no measurement can: `intervene`, with an intervention.
    """
    if "attention_received" not in data:
        return []
    strongest = strongest_position(data, epsilon)
    if strongest is None:
        unknown = "Whether there is a sink is unknown: no position that more than half of the tokens see has a number."
        return [unknown, *_slots(data, epsilon)]
    if not strongest.rate > 0:
        no = f"No: on this input no position receives more than ε = {epsilon:g} of the attention of any head."
        return [" ".join([no, *_slots(data, epsilon)])]
    command = f"{intervene} --on positions:{strongest.position}"
    chosen, who = _heads(data, strongest.position, epsilon)
    where = _where(
        data, strongest.position, strongest.rate, epsilon, bool((exceeds(chosen["alpha"].values, epsilon) == 1).any())
    )
    return [
        " ".join([where, *_slots(data, epsilon)]),
        *([anew] if (anew := collapse(data, strongest.position, epsilon)) else []),
        _mechanism(data, chosen, who, strongest.position),
        _matters(chosen, command),
    ]


def _where(data: xr.Dataset, position: int, rate: float, epsilon: float, rests: bool) -> str:
    """`rests`: whether some head gives the position more than epsilon on average, not only in some samples."""
    column = column_of(data, position)
    by_layer = nanmean(layer_rates(received(data), epsilon), 0)[:, column]
    layers = [label for label, value in zip(layer_labels(data), by_layer, strict=True) if value > 0]
    few = f"in layer{'s' if len(layers) > 1 else ''} {_joined(layers)}"
    places = few if len(layers) <= SOME else f"in {len(layers)} of {len(by_layer)} layers, first in {layers[0]}"
    share = rate_words(data, rate, epsilon, position)
    if not rests:
        return (
            f"Hardly: on average over samples no head gives a position more than ε = {epsilon:g} of its attention; "
            f"position {position} receives that in {share} of (sample, layer, head), {places}."
        )
    return (
        f"Yes: position {position} receives more than ε = {epsilon:g} of the attention in {share} of "
        f"(layer, head) pairs, {places}."
    )


def bands(rates: Float[np.ndarray, "layer"]) -> list[tuple[int, int]]:
    """Runs of layers, by first and last index, in which the sink is present, lost, and present again.

    `rates`: percent of each layer's heads. A layer has lost the sink if its rate is below a quarter of the largest.
    Empty unless one or two lost runs lie between runs of at least two layers with the sink (more would be an
    alternation of windows and full attention).
    """
    known = np.nan_to_num(rates)
    there = known >= known.max(initial=0) / 4
    if not known.any():
        return []
    first, last = np.flatnonzero(there)[[0, -1]]
    edges = [first, *(1 + first + np.flatnonzero(np.diff(there[first : last + 1].astype(int)))), last + 1]
    runs = [(int(start), int(stop) - 1) for start, stop in pairwise(edges)]
    lost = len(runs) // 2
    return runs if 1 <= lost <= LOST and all(stop > start for start, stop in runs[::2]) else []


def collapse(data: xr.Dataset, position: int, epsilon: float) -> str:
    """A sentence that the sink collapses at some layers and reappears; empty if it does not.

    For the stack whose tokens are measured; with the norm of the position's hidden state, if it was measured.
    """
    view = TokenView(data, epsilon)
    stack_layers = np.flatnonzero(view.layers)
    rates = nanmean(layer_rates(received(data), epsilon), 0)[stack_layers, column_of(data, position)]
    runs = bands(rates)
    if not runs:
        return ""
    numbers = data["layer_index"].values[stack_layers]
    parts = []
    for index, (start, stop) in enumerate(runs):
        named = f"layer {numbers[start]}" if start == stop else f"layers {numbers[start]} to {numbers[stop]}"
        inside = rates[start : stop + 1]
        amount = f"at most {inside.max():.0f} %" if index % 2 else f"{inside.min():.0f} to {inside.max():.0f} %"
        parts.append(f"{named}: {amount}")
    state = _state_between(data, view, position, [(numbers[start], numbers[stop]) for start, stop in runs])
    return f"The sink collapses and reappears (share of heads with it in {'; '.join(parts)}){state}."


def _state_between(data: xr.Dataset, view: TokenView, position: int, runs: list[tuple[int, int]]) -> str:
    """The norm of the position's state over the others': the least where the sink is lost, and the largest after
    that.
    """
    if "hidden_norm" not in data or not has_position(data, position):
        return ""
    lengths = view.per_depth("hidden_norm")
    ratio = nanmean(over_others(lengths, column_of(data, position)), 0)
    gone = [ratio[start : stop + 1] for start, stop in runs[1::2]]
    after = [ratio[start : stop + 1] for start, stop in runs[2::2]]
    if not all(map(len, (*gone, *after))):
        return ""
    least, most = min(map(np.nanmin, gone)), max(map(np.nanmax, after))
    return f", as the norm of its hidden state relative to the others' does: × {short(least)}, then × {short(most)}"


def _heads(data: xr.Dataset, position: int, epsilon: float) -> tuple[pd.DataFrame, str]:
    """The heads that attend to a position, or the nearest one, and how to name them."""
    heads = head_table(data, head_values(data, epsilon, position))
    resting = heads[exceeds(heads["alpha"].values, epsilon) == 1]
    if not len(resting):
        return heads.nlargest(1, "alpha"), "In the head that comes nearest"
    one = len(resting) == 1
    return resting, "In the one head with the sink" if one else f"In the {len(resting)} heads with the sink"


def _mechanism(data: xr.Dataset, chosen: pd.DataFrame, who: str, position: int) -> str:
    facts = [
        _ratio(
            chosen, "value_ratio", "its value norm is {} the others'", SHORT, ", so that attention to it adds little"
        ),
        _ratio(chosen, "key_ratio", "its key norm {}", 0.0, ""),
        _cosine(chosen),
    ]
    parts = [fact for fact in facts if fact]
    state = _state(data, position)
    if not parts:
        return f"By which mechanism is not known: values and keys were not observed.{f' Its {state}.' if state else ''}"
    kinds = _kinds(chosen)
    return f"{who}{f' ({kinds})' if kinds else ''}, {_joined(parts)}{f'; its {state}' if state else ''}."


def _matters(chosen: pd.DataFrame, command: str) -> str:
    """The norm of what these heads read from the sink compared with everything else, and the command that tests the
    rest.
    """
    asked = f"“{command}” hides it, mutes its value and replaces it by a constant, and does the same to other tokens."
    if not {"sink_output_norm", "rest_output_norm"} <= {*chosen.columns}:
        return f"A measurement cannot tell whether the model needs it: {asked}"
    ratio = (chosen["sink_output_norm"] / chosen["rest_output_norm"]).replace(np.inf, np.nan)
    if ratio.isna().any():
        return f"A measurement cannot tell whether the model needs it: {asked}"
    head = "these heads read" if len(chosen) > 1 else "this head reads"
    times = _times(ratio)
    sentence = f"What {head} from the sink has {times} the norm of what is read from all other tokens"
    constant = chosen.get("sink_output_constancy")
    if constant is not None and constant.min() >= CONSTANT:
        sentence += ", and nearly the same for every token, like a bias"
    return f"{sentence}; a measurement cannot tell whether the model needs that: {asked}"


def _ratio(chosen: pd.DataFrame, name: str, wording: str, least: float, remark: str) -> str:
    if name not in chosen or chosen[name].isna().all():
        return ""
    return f"{wording.format(_times(chosen[name]))}{remark if chosen[name].quantile(0.75) < least else ''}"


def _times(ratios: pd.Series) -> str:
    """The median over heads, with quartiles where they differ."""
    low, middle, high = (short(float(ratios.quantile(at))) for at in (0.25, 0.5, 0.75))
    return f"{middle} times" if low == high else f"{middle} times (quartiles {low} to {high})"


def short(value: float) -> str:
    """Two digits, without an exponent between 0.001 and 100,000."""
    if value == 0 or not np.isfinite(value):
        return f"{value:g}"
    size = int(np.floor(np.log10(abs(value))))
    if not -3 <= size < 5:
        return f"{value:.1e}"
    return f"{round(value, 1 - size):,.{max(0, 1 - size)}f}"


def _cosine(chosen: pd.DataFrame) -> str:
    if not {"cos_sink", "cos_others"} <= {*chosen.columns} or chosen["cos_sink"].isna().all():
        return ""
    sink, others = chosen["cos_sink"].mean(), chosen["cos_others"].mean()
    # No other query sees the second of two tokens.
    elsewhere = "" if np.isnan(others) else f" (other keys {others:.2f})"
    return f"queries meet its key at a cosine of {sink:.2f}{elsewhere}"


def _state(data: xr.Dataset, position: int) -> str:
    if position != 0 or "hidden_norm" not in data or not has_position(data, 0):
        return ""
    ratio = hidden_norm_ratio(data)
    if not bool(ratio.notnull().any()):
        return ""
    index = int(ratio.fillna(-np.inf).values.argmax())
    size = float(ratio[index])
    if size < LONG:
        return f"hidden state norm is nowhere more than {short(size)} times the others'"
    depth = int(data["depth_index"].values[index])
    return f"hidden state norm grows to {short(size)} times the others', at depth {depth}"


def _kinds(chosen: pd.DataFrame) -> str:
    if "kind" not in chosen:
        return ""
    counts = chosen["kind"].dropna().value_counts()
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def _slots(data: xr.Dataset, epsilon: float) -> list[str]:
    slots = slot_mass(data, epsilon)
    if slots is None or np.isnan(slots.mass.value):
        return []
    return [f"Of the attention, {100 * slots.mass.value:.1f} % goes to slots, which are no tokens."]


def _joined(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
