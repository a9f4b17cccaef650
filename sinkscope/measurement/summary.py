"""A measurement in at most thirty lines, for any depth: the answer, layers as bands, the strongest heads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import pandas as pd
import xarray as xr

from sinkscope.measurement.finding import INTERVENE, answer
from sinkscope.measurement.head_metrics import KINDS, head_table, head_values
from sinkscope.measurement.rates import interval_words, rate_words, stack_rates
from sinkscope.measurement.selection import record_of
from sinkscope.measurement.slots import slot_mass
from sinkscope.measurement.tables import layer_table

BANDS = 8  # at most, per stack of layers
WITHIN = 25.0  # percentage points: layers whose rates differ by less are one band
HEADS = 5


@dataclass(frozen=True)
class Band:
    """Neighboring layers whose sink rates (%) at position 0 are alike."""

    stack: str
    first: int
    last: int
    low: float
    high: float

    def __str__(self) -> str:
        layers = f"{self.first}" if self.first == self.last else f"{self.first}–{self.last}"
        low, high = f"{self.low:.0f}", f"{self.high:.0f}"
        return f"{layers}: {high if low == high else f'at most {high}' if low == '0' else f'{low}–{high}'} %"


@dataclass(frozen=True)
class Summary:
    """The finding of a measurement, as sentences and as values; `str` and notebooks show the lines.

    `sentences`: the answer. `title`: the model and its inputs. `rates`: by stack of layers, position 0's sink rate (%)
    with its interval, as (value, low, high); `found` gives the same in words. `bands`: layers by that rate. `kinds`:
    how many heads are of each kind. `strongest`: heads by what position 0 receives, each with three figures. `slots`:
    what learned sinks and key biases receive; None without any.
    """

    sentences: tuple[str, ...]
    title: str
    epsilon: float
    rates: dict[str, tuple[float, float, float]]
    found: tuple[str, ...]
    bands: tuple[Band, ...]
    kinds: dict[str, int]
    strongest: tuple[dict[str, Any], ...]
    slots: str | None
    not_measured: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON; numbers that do not exist are None."""
        return dict(_plain(asdict(self)))

    def lines(self) -> list[str]:
        """At most thirty lines, whatever the depth."""
        several = len(self.rates) > 1
        lines = list(self.sentences)
        for stack, sentence in zip(self.rates, self.found, strict=True):
            lines.append(sentence)
            bands = [str(band) for band in self.bands if band.stack == stack]
            if bands:
                lines.append(f"By layer: {', '.join(bands)}.")
        if self.kinds:
            kinds = (
                f"{count} {kind}{f' ({KINDS[kind]})' if kind in KINDS else ''}" for kind, count in self.kinds.items()
            )
            lines.append(f"Heads: {', '.join(kinds)}.")
        lines += [_head(head, several) for head in self.strongest]
        if self.slots is not None:
            lines.append(f"{self.slots}.")
        if self.not_measured:
            lines.append(f"Not measured: {', '.join(self.not_measured)}.")
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        from html import escape

        return "".join(f"<p>{escape(line)}</p>" for line in self.lines())


def summary(data: xr.Dataset, epsilon: float = 0.3, *, intervene: str = INTERVENE, title: str = "") -> Summary:
    """See `Summary`."""
    not_measured = dict(record_of(data).get("not_measured", {}))
    if "attention_received" not in data:
        return Summary((), title, epsilon, {}, (), (), {}, (), None, not_measured)
    slots, rates = slot_mass(data, epsilon), stack_rates(data, epsilon)
    heads = head_table(data, head_values(data, epsilon, 0))
    sentences = [
        f"{title}{': ' if title else ''}{f'{stack}: ' if len(rates) > 1 else ''}position 0 receives over {epsilon:g} "
        f"of the attention in {rate_words(data, rate.value, epsilon, 0, stack)} of (layer, head) pairs "
        f"({interval_words(rate.low, rate.high, data.sizes['sample'])})."
        for stack, rate in rates.items()
    ]
    return Summary(
        sentences=tuple(answer(data, epsilon, intervene)),
        title=title,
        epsilon=epsilon,
        rates={stack: (rate.value, rate.low, rate.high) for stack, rate in rates.items()},
        found=tuple(sentences),
        bands=layer_bands(layer_table(data, epsilon)),
        kinds={str(kind): int(count) for kind, count in heads["kind"].value_counts().items()}
        if "kind" in heads
        else {},
        strongest=_strongest(heads),
        slots=None if slots is None else slots.sentence(epsilon),
        not_measured=not_measured,
    )


def _plain(value: Any) -> Any:
    """The same with None in place of NaN."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def layer_bands(table: pd.DataFrame) -> tuple[Band, ...]:
    """Layers of each stack as bands: the two neighbors with the narrowest union are joined while that is within
    `WITHIN` points or there are more than `BANDS`.
    """
    bands: list[Band] = []
    for stack, layers in table.groupby("stack", sort=False):
        rows = layers[layers["sink_rate"].notna()]
        parts = [
            Band(str(stack), int(row.layer), int(row.layer), row.sink_rate, row.sink_rate) for row in rows.itertuples()
        ]
        while len(parts) > 1:
            unions = [_joined(*pair) for pair in pairwise(parts)]
            place = min(range(len(unions)), key=lambda index: unions[index].high - unions[index].low)
            if unions[place].high - unions[place].low > WITHIN and len(parts) <= BANDS:
                break
            parts[place : place + 2] = [unions[place]]
        bands += parts
    return tuple(bands)


def _joined(one: Band, other: Band) -> Band:
    return Band(one.stack, one.first, other.last, min(one.low, other.low), max(one.high, other.high))


def _strongest(heads: pd.DataFrame) -> tuple[dict[str, Any], ...]:
    if "alpha" not in heads:
        return ()
    columns = [name for name in ("stack", "layer", "head", "alpha", "value_ratio", "cos_sink", "kind") if name in heads]
    rows: Sequence[dict[Any, Any]] = heads.nlargest(HEADS, "alpha")[columns].to_dict("records")
    return tuple({name: None if pd.isna(value) else value for name, value in row.items()} for row in rows)


def _head(head: dict[str, Any], several: bool) -> str:
    place = f"{head['stack']} " if several else ""
    figures = [f"α {head['alpha']:.2f}"]
    if head.get("value_ratio") is not None:
        figures.append(f"value × {head['value_ratio']:.2f}")
    if head.get("cos_sink") is not None:
        figures.append(f"query–key cosine {head['cos_sink']:.2f}")
    kind = f" ({head['kind']})" if head.get("kind") else ""
    return f"{place}layer {head['layer']}, head {head['head']}: {', '.join(figures)}{kind}"
