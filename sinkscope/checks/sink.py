"""Is there a sink: where, in which layers, made where, and what else receives or sticks out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import xarray as xr

from sinkscope.checks.row import Answered, Row
from sinkscope.checks.section import CheckSection, Progress
from sinkscope.checks.subject import CheckedModel, TextSet
from sinkscope.hooks import Stream, text_config
from sinkscope.measurement import Measurement, column_of, received, slot_mass, strongest_position
from sinkscope.measurement.metrics import layer_rates, nanmean, over_others, sample_rates
from sinkscope.sinks import EPSILON, NothingChosenError
from sinkscope.statistics import Interval, mean_interval, share_interval

FADED = 0.25  # of the largest layer's rate: below, a layer is not listed
LONG_STATE = 20.0  # times the median of a text's tokens, from which a hidden state is called an outlier
FEW = 5.0  # percent of heads, below which a sink is called weak


def applies(subject: CheckedModel) -> str:
    """Empty: what has no attention refuses to be measured."""
    return ""


def run(subject: CheckedModel, texts: TextSet, progress: Progress | None) -> Answered:
    """The sink of these texts, in words and rows."""
    measurement = subject.measured(texts)
    data = measurement.data
    stack = Stream.of(subject.model).stack
    rates = sample_rates(received(data, stack), EPSILON)
    heads = data.sizes["head"] * int((data["stack"].values == stack).sum())
    found = strongest_position(data.isel(layer=np.flatnonzero(data["stack"].values == stack)), EPSILON)
    slots = slot_mass(data, EPSILON)
    learned = "" if slots is None else f"{slots.sentence(EPSILON)[:1].upper()}{slots.sentence(EPSILON)[1:]}."
    n = len(texts.ids)
    if found is None or not found.rate > 0:
        said = f"No: no token receives over {100 * EPSILON:.0f} % of the attention of any of {heads} heads ({n} texts)."
        row = Row("rate", "no sink", Interval(0.0, 0.0, 0.0), "% of heads", n, flags=("no-sink",))
        return Answered(" ".join(filter(None, (said, learned))), (row, *_slot_row(slots, n)), {"position": None})
    position = found.position
    own = rates[:, column_of(data, position)]
    share = share_interval(own / 100)
    rate = Interval(100 * share.value, 100 * share.low, 100 * share.high)
    layers = _layers(data, stack, position)
    made, facts = _made(measurement, stack, position)
    said = (
        f"{_how(measurement, position, rate)}: position {position} takes over {100 * EPSILON:.0f} % of the "
        f"attention in {rate.value:.0f} % of {heads} heads ({rate.low:.0f}–{rate.high:.0f}; {n} texts). "
        f"Layer{'s' if len(layers) > 1 else ''} {_runs(layers)}."
    )
    others = _others(measurement, position)
    more = [made, _windows(subject), learned, others]
    token = _token(subject, texts, position)
    values = tuple(float(value) for value in own)
    row = Row("rate", f"position {position}{token}", rate, "% of heads", n, values=values)
    outliers = _outliers(data, stack, measurement)
    rows = [row, *_slot_row(slots, n), *outliers]
    facts |= {"position": position, "layers": layers, "heads": heads, "by_head": _by_head(data, stack, position)}
    facts |= {"token": int(texts.ids[0, position])} if token else {}
    return Answered(" ".join(filter(None, (said, *more))), tuple(rows), facts)


def _how(measurement: Measurement, position: int, rate: Interval) -> str:
    """Whether it is a sink by the rule that protects tokens, and whether of many heads."""
    if position not in _positions(measurement):
        return "Not by the rule (on average over texts, and seen by enough queries)"
    return "Yes" if rate.value >= FEW else "Weak"


def _layers(data: xr.Dataset, stack: str, position: int) -> list[int]:
    """Numbers of the layers that have the sink: at least a quarter of the rate of the layer that has most."""
    rates = nanmean(layer_rates(received(data, stack), EPSILON), 0)[:, column_of(data, position)]
    numbers = data["layer_index"].values[data["stack"].values == stack]
    return [int(n) for n, rate in zip(numbers, rates, strict=True) if rate > 0 and rate >= FADED * np.nanmax(rates)]


def _by_head(data: xr.Dataset, stack: str, position: int) -> list[list[float]]:
    """Layer, head, and in how many percent of the texts it has the sink, with the interval; heads that never do not."""
    numbers = data["layer_index"].values[data["stack"].values == stack]
    has_sink = received(data, stack)[..., column_of(data, position)] > EPSILON  # (sample, layer, head)
    found = []
    for layer, head in np.argwhere(has_sink.any(0)):
        share = share_interval(has_sink[:, layer, head].astype(float))
        ends = (round(100 * value, 2) for value in (share.value, share.low, share.high))
        found.append([int(numbers[layer]), int(head), *ends])
    return found


def _runs(numbers: Sequence[int]) -> str:
    """2–9 and 12–29."""
    edges = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(numbers)) if b != a + 1), len(numbers)]
    runs = [numbers[start:stop] for start, stop in pairwise(edges)]
    parts = [f"{run[0]}" if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _made(measurement: Measurement, stack: str, position: int) -> tuple[str, dict[str, Any]]:
    """The block after which the position's state has grown most, by how much, and in which channel."""
    data = measurement.data
    if "hidden_norm" not in data:
        return "", {}
    own = np.flatnonzero(data["depth_stack"].values == stack) if "depth_stack" in data.coords else None
    norms = data["hidden_norm"].transpose("sample", "depth", "position").values
    depths = data["depth_index"].values
    if own is not None:
        norms, depths = norms[:, own], depths[own]
    if position >= norms.shape[-1]:
        return "", {}
    ratio = nanmean(over_others(norms, column_of(data, position)), 0)
    if len(ratio) < 2 or not np.isfinite(ratio[:-1]).all():
        return "", {}
    steps = ratio[1:] / np.maximum(ratio[:-1], 1e-9)
    place = int(np.nanargmax(steps)) + 1
    if not ratio[place] > 2:
        return f"Its hidden state is nowhere over {np.nanmax(ratio):.1f} times as long as the others'.", {}
    facts: dict[str, Any] = {"block": int(depths[place]) - 1, "hidden_norm_ratio": float(ratio[place])}
    channel = _channel(data, own, place, position)
    said = f"Made at block {depths[place] - 1} (hidden norm × {ratio[place]:.0f}"
    if channel is not None:
        facts["channel"] = channel
        said += f", channel {channel}"
    return f"{said}).", facts


def _channel(data: xr.Dataset, own: np.ndarray | None, place: int, position: int) -> int | None:
    """The dimension of the position's largest entry there, where most texts agree on it."""
    if "hidden_top" not in data:
        return None
    parts = {
        name: data[f"hidden_top{name}"].transpose("sample", "depth", "top").values
        for name in ("_position", "_dimension")
    }
    if own is not None:
        parts = {name: values[:, own] for name, values in parts.items()}
    here = parts["_position"][:, place] == position
    first = [row[mask][0] for row, mask in zip(parts["_dimension"][:, place], here, strict=True) if mask.any()]
    if len(first) * 2 <= len(here):
        return None
    values, counts = np.unique(np.asarray(first), return_counts=True)
    return int(values[counts.argmax()]) if counts.max() * 2 > len(here) else None


def _others(measurement: Measurement, position: int) -> str:
    """Further positions that some head gives more than ε of its attention on average."""
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


def _windows(subject: CheckedModel) -> str:
    """How many layers see a window alone."""
    kinds = getattr(text_config(subject.model), "layer_types", None) or []
    count = sum("sliding" in kind or "chunked" in kind for kind in kinds)
    return f"{count} of {len(kinds)} layers see a window alone." if count else ""


def _slot_row(slots: Any, n: int) -> list[Row]:
    if slots is None or not np.isfinite(slots.mass.value):
        return []
    mass = Interval(100 * slots.mass.value, 100 * slots.mass.low, 100 * slots.mass.high)
    return [Row("slots", "learned sinks, which are no tokens", mass, "% of attention", n, flags=("learned-sink",))]


def _token(subject: CheckedModel, texts: TextSet, position: int) -> str:
    """The token that stands there, where it is the same in all texts."""
    column = texts.ids[:, position]
    return f" ({subject.spelled(int(column[0]))})" if bool((column == column[0]).all()) else ""


def _outliers(data: xr.Dataset, stack: str, measurement: Measurement) -> list[Row]:
    """Tokens whose state is at some depth many times as long as the text's median, and that are no sinks."""
    if "hidden_norm" not in data:
        return []
    norms = data["hidden_norm"].transpose("sample", "depth", "position").values
    if "depth_stack" in data.coords:
        norms = norms[:, data["depth_stack"].values == stack]
    with np.errstate(invalid="ignore", divide="ignore"):
        large = (norms > LONG_STATE * np.nanmedian(norms, -1, keepdims=True)).any(1)
    large[:, [place for place in _positions(measurement) if place < large.shape[1]]] = False
    counts = large.sum(-1).astype(float)
    if not counts.any():
        return []
    what = f"tokens a text with a state over {LONG_STATE:.0f} × the median that are no sinks"
    return [Row("outliers", what, mean_interval(counts), "tokens a text", len(counts), values=tuple(counts.tolist()))]


SECTION = CheckSection("sink", "Sink", "default", applies, 1.5, run)
