"""Is there a sink: its position, its layers, the block that makes it, and other sinks and outliers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import xarray as xr

from sinkscope.checks.row import Answered, Row
from sinkscope.checks.section import CheckSection, Progress
from sinkscope.checks.subject import CheckedModel, TextSet
from sinkscope.hooks import Stream, text_config
from sinkscope.measurement import Measurement, column_of, comparable_places, received, slot_mass, strongest_position
from sinkscope.measurement.metrics import layer_rates, nanmean, over_others, sample_rates
from sinkscope.sinks import EPSILON, NothingChosenError
from sinkscope.statistics import Interval, mean_interval, share_interval

LAYER_SHARE = 0.25  # of the largest rate of a layer: layers with less are not listed
OUTLIER_RATIO = 20.0  # of a hidden state's norm to the median of the text's tokens
NO_SINK = "no-sink"  # a flag
WEAK = 5.0  # percent of heads; a sink of fewer heads is called weak


def run(subject: CheckedModel, texts: TextSet, progress: Progress | None) -> Answered:
    """The strongest sink of these texts; of images and recordings, in each stack of layers that reads something."""
    measurement, first = subject.measurement(texts), Stream.of(subject.model).stack
    if not texts.inputs:
        return _in_stack(subject, texts, measurement, first)
    stacks = [str(name) for name in dict.fromkeys(measurement.data["stack"].values) if "cross" not in str(name)]
    found = {name: _in_stack(subject, texts, _only(measurement, name), name) for name in stacks}
    if len(stacks) == 1:
        return found[stacks[0]]
    answer = " ".join(f"{name.capitalize()} layers: {each.answer}" for name, each in found.items())
    none = all(each.facts["position"] is None for each in found.values())
    rows = [
        replace(
            row,
            key=f"{row.key}:{name}",
            finding=f"{name}: {row.finding}",
            flags=tuple(flag for flag in row.flags if none or flag != NO_SINK),
        )
        for name, each in found.items()
        for row in each.rows
    ]
    return Answered(answer, tuple(rows), found[first if first in found else stacks[0]].facts)


def _only(measurement: Measurement, stack: str) -> Measurement:
    """The layers and depths of one stack."""
    data = measurement.data.isel(layer=np.flatnonzero(measurement.data["stack"].values == stack))
    return Measurement(data.isel(depth=_depths_of(data, stack)) if "depth" in data.dims else data)


def _in_stack(subject: CheckedModel, texts: TextSet, measurement: Measurement, stack: str) -> Answered:
    data = measurement.data
    rates = sample_rates(received(data, stack), EPSILON)
    heads = int(_heads(received(data, stack)).sum())
    strongest = strongest_position(data.isel(layer=np.flatnonzero(data["stack"].values == stack)), EPSILON)
    slots = slot_mass(data, EPSILON)
    learned = "" if slots is None else f"{slots.sentence(EPSILON)[:1].upper()}{slots.sentence(EPSILON)[1:]}."
    n = len(texts.ids)
    counted = f"{n} {texts.samples}"
    if strongest is None or not strongest.rate > 0:
        no = f"No: no token receives over {100 * EPSILON:.0f} % of the attention of any of {heads} heads ({counted})."
        row = Row("rate", "no sink", Interval(0.0, 0.0, 0.0), "% of heads", n, flags=(NO_SINK,))
        return Answered(" ".join(filter(None, (no, learned))), (row, *_slot_rows(slots, n)), {"position": None})
    position = strongest.position
    values = rates[:, column_of(data, position)]
    share = share_interval(values / 100)
    rate = Interval(100 * share.value, 100 * share.low, 100 * share.high)
    layers = _layers(data, stack, position)
    origin, facts = _origin(measurement, stack, position)
    strength = _strength(measurement, position, rate, texts.samples)
    verdict = (
        f"{strength}: position {position} takes over {100 * EPSILON:.0f} % of the attention in "
        f"{rate.value:.0f} % of {heads} heads ({rate.low:.0f}–{rate.high:.0f}; {counted}). "
        f"Layer{'s' if len(layers) > 1 else ''} {_ranges(layers)}."
    )
    elsewhere = (_anywhere_row(data, stack, texts),) if texts.inputs else ()
    wherever = " ".join(f"In {np.mean(row.values):.0f} % {row.finding} does." for row in elsewhere)
    windows = _window_layers(subject) if stack == Stream.of(subject.model).stack else ""
    sentences = [verdict, wherever, origin, windows, learned, _other_sinks(measurement, position)]
    token = _same_token(texts, position)
    finding = f"position {position}" + ("" if token is None else f" ({subject.token_text(token)})")
    row = Row("rate", finding, rate, "% of heads", n, values=tuple(values.tolist()))
    rows = [
        row,
        *elsewhere,
        *_slot_rows(slots, n),
        *_outlier_rows(data, stack, measurement, texts),
    ]
    facts |= {"position": position, "layers": layers, "heads": heads, "by_head": _by_head(data, stack, position)}
    facts |= {"by_layer": _by_layer(data, stack, position)}
    facts |= {"positions": list(_positions(measurement)), "token": _same_token(texts, position)}
    facts |= {"tokens": [_same_token(texts, place) for place in facts["positions"]]}
    return Answered(" ".join(filter(None, sentences)), tuple(rows), facts)


def _heads(alpha: np.ndarray) -> np.ndarray:
    """True for the heads that a layer has, (layer, head): layers and stacks with fewer are padded with NaN."""
    return np.isfinite(alpha).any((0, 3))


def _anywhere_row(data: xr.Dataset, stack: str, texts: TextSet) -> Row:
    """The heads that have a sink at some token that enough queries see, which may be another one in each image.

    Vision transformers put theirs on patches of the background (Darcet et al. 2023).
    """
    alpha = received(data, stack)
    places = comparable_places(data)[:, data["stack"].values == stack]
    has_sink = ((alpha > EPSILON) & places[:, :, None]).any(-1)  # (sample, layer, head)
    values = nanmean(nanmean(np.where(_heads(alpha), has_sink, np.nan), 2), 1)
    share = share_interval(values)
    rate = Interval(100 * share.value, 100 * share.low, 100 * share.high)
    finding = f"some token, which may be another one in each {texts.samples.removesuffix('s')},"
    return Row("anywhere", finding, rate, "% of heads", len(values), values=tuple((100 * values).tolist()))


def _strength(measurement: Measurement, position: int, rate: Interval, samples: str) -> str:
    """Whether the position is a sink by the rule that protects tokens, and of enough heads."""
    if position not in _positions(measurement):
        return f"Not by the rule (on average over {samples}, and seen by enough queries)"
    return "Yes" if rate.value >= WEAK else "Weak"


def _layers(data: xr.Dataset, stack: str, position: int) -> list[int]:
    """Numbers of the layers whose rate is at least a quarter of the largest rate of a layer."""
    rates = nanmean(layer_rates(received(data, stack), EPSILON), 0)[:, column_of(data, position)]
    numbers = data["layer_index"].values[data["stack"].values == stack]
    least = LAYER_SHARE * np.nanmax(rates)
    return [int(number) for number, rate in zip(numbers, rates, strict=True) if rate > 0 and rate >= least]


def _by_layer(data: xr.Dataset, stack: str, position: int) -> list[list[float]]:
    """Layer, the percent of its heads that have the sink, mean over texts, and its interval."""
    numbers = data["layer_index"].values[data["stack"].values == stack]
    rates = layer_rates(received(data, stack), EPSILON)[..., column_of(data, position)]  # (sample, layer)
    shares = [share_interval(rates[:, index] / 100) for index in range(len(numbers))]
    ends = [[round(100 * value, 2) for value in (share.value, share.low, share.high)] for share in shares]
    return [[int(number), *percent] for number, percent in zip(numbers, ends, strict=True)]


def _by_head(data: xr.Dataset, stack: str, position: int) -> list[list[float]]:
    """Layer, head, the percent of texts in which it has the sink, and its interval; for heads that have it at all."""
    numbers = data["layer_index"].values[data["stack"].values == stack]
    has_sink = received(data, stack)[..., column_of(data, position)] > EPSILON  # (sample, layer, head)
    rows = []
    for layer, head in np.argwhere(has_sink.any(0)):
        share = share_interval(has_sink[:, layer, head].astype(float))
        percent = (round(100 * value, 2) for value in (share.value, share.low, share.high))
        rows.append([int(numbers[layer]), int(head), *percent])
    return rows


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers in short: 2–9 and 12–29."""
    edges = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(numbers)) if b != a + 1), len(numbers)]
    runs = [numbers[start:stop] for start, stop in pairwise(edges)]
    parts = [f"{run[0]}" if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _origin(measurement: Measurement, stack: str, position: int) -> tuple[str, dict[str, Any]]:
    """The block at which the norm of the position's hidden state grows most, relative to other positions.

    A sentence, and the facts `block`, `hidden_norm_ratio` and `channel`; both empty without norms.
    """
    data = measurement.data
    if "hidden_norm" not in data:
        return "", {}
    in_stack = _depths_of(data, stack)
    norms = data["hidden_norm"].transpose("sample", "depth", "position").values[:, in_stack]
    depths = data["depth_index"].values[in_stack]
    if position >= norms.shape[-1]:
        return "", {}
    ratio = nanmean(over_others(norms, column_of(data, position)), 0)
    if len(ratio) < 2 or not np.isfinite(ratio[:-1]).all():
        return "", {}
    growth = ratio[1:] / np.maximum(ratio[:-1], 1e-9)
    jump = int(np.nanargmax(growth)) + 1
    if not ratio[jump] > 2:
        return f"Its hidden state is nowhere over {np.nanmax(ratio):.1f} times as long as the others'.", {}
    facts: dict[str, Any] = {"block": int(depths[jump]) - 1, "hidden_norm_ratio": float(ratio[jump])}
    channel = _channel(data, in_stack[jump], position)
    text = f"hidden norm × {ratio[jump]:.0f}"
    if channel is not None:
        facts["channel"] = channel
        text += f", channel {channel}"
    return f"Made at block {facts['block']} ({text}).", facts


def _depths_of(data: xr.Dataset, stack: str) -> np.ndarray:
    """Indices of the depths that belong to a stack; all of them where the model has one stack."""
    if "depth_stack" not in data.coords:
        return np.arange(data.sizes["depth"])
    return np.flatnonzero(data["depth_stack"].values == stack)


def _channel(data: xr.Dataset, depth: int, position: int) -> int | None:
    """The channel of the position's largest entry at a depth; None unless more than half of the texts agree on it."""
    if "hidden_top" not in data:
        return None
    positions, channels = (
        data[name].isel(depth=depth).transpose("sample", "top").values
        for name in ("hidden_top_position", "hidden_top_dimension")
    )
    here = positions == position
    largest = [row[mask][0] for row, mask in zip(channels, here, strict=True) if mask.any()]
    if len(largest) * 2 <= len(here):
        return None
    candidates, counts = np.unique(np.asarray(largest), return_counts=True)
    return int(candidates[counts.argmax()]) if counts.max() * 2 > len(here) else None


def _other_sinks(measurement: Measurement, position: int) -> str:
    """Further positions that are sinks of some head."""
    others = [place for place in _positions(measurement) if place != position]
    if not others:
        return ""
    where = ", ".join(map(str, others[:6])) + (" …" if len(others) > 6 else "")
    return f"Further sinks of single heads: position{'s' if len(others) > 1 else ''} {where}."


def _positions(measurement: Measurement) -> tuple[int, ...]:
    """Positions that are sinks of some head, by the rule of `sinks`."""
    try:
        return measurement.sinks(EPSILON).positions
    except NothingChosenError:
        return ()


def _window_layers(subject: CheckedModel) -> str:
    """How many layers see only a window."""
    layers = getattr(text_config(subject.model), "layer_types", None) or []
    return f"{len(subject.windows)} of {len(layers)} layers see a window alone." if subject.windows else ""


def _slot_rows(slots: Any, n: int) -> list[Row]:
    if slots is None or not np.isfinite(slots.mass.value):
        return []
    mass = Interval(100 * slots.mass.value, 100 * slots.mass.low, 100 * slots.mass.high)
    advice = "serve with an attention backend that has learned sinks"
    finding = "learned sinks, which are no tokens"
    return [Row("slots", finding, mass, "% of attention", n, advice=advice, flags=("learned-sink",))]


def _same_token(texts: TextSet, position: int) -> int | None:
    """The token at the position; None unless all texts have the same token there."""
    if texts.inputs:
        return None
    column = texts.ids[:, position]
    return int(column[0]) if bool((column == column[0]).all()) else None


def _outlier_rows(data: xr.Dataset, stack: str, measurement: Measurement, texts: TextSet) -> list[Row]:
    """Tokens with a hidden norm of many times the text's median at some depth, sinks excluded."""
    if "hidden_norm" not in data:
        return []
    norms = data["hidden_norm"].transpose("sample", "depth", "position").values[:, _depths_of(data, stack)]
    with np.errstate(invalid="ignore", divide="ignore"):
        large = (norms > OUTLIER_RATIO * np.nanmedian(norms, -1, keepdims=True)).any(1)
    large[:, [place for place in _positions(measurement) if place < large.shape[1]]] = False
    counts = large.sum(-1).astype(float)
    if not counts.any():
        return []
    each = {"texts": "a text", "images": "an image", "recordings": "a recording"}[texts.samples]
    finding = f"tokens {each} with a state over {OUTLIER_RATIO:.0f} × the median that are no sinks"
    mean = mean_interval(counts)
    return [Row("outliers", finding, mean, f"tokens {each}", len(counts), values=tuple(counts.tolist()))]


# It applies to every model: one without attention raises an error when it is measured.
SECTION = CheckSection(
    "sink",
    "Sink",
    "default",
    lambda subject: "",
    tuple(f"{key}{stack}" for key in ("rate", "anywhere", "slots", "outliers") for stack in ("", ":*")),
    1.5,
    run,
    flags=(NO_SINK, "learned-sink"),
    media=True,
)
