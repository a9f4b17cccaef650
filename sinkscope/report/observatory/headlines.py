"""The numbers a reader should remember of one measurement."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sinkscope.probes import Measurement
from sinkscope.probes.metrics import nanmean
from sinkscope.probes.metrics.massive import is_massive
from sinkscope.report.observatory.places import strongest
from sinkscope.report.page import Headline
from sinkscope.report.rates import rate_at

NEGLIGIBLE = 1e-9
"""Stands in for the magnitude where the ratio to the median shall decide alone."""


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
    if 0 in data["position"].values:
        rate = rate_at(data, epsilon)
        interval = f"95 % interval {rate.low:.1f} to {rate.high:.1f}"
        cards.append(Headline(f"{rate.value:.1f} %", f"sink rate at position 0 (ε = {epsilon:g}; {interval})"))
    position, rate_there = strongest(data, epsilon)
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
    if "position" not in data.coords or 0 not in data["position"].values:
        return []
    if "hidden_norm" in data:
        ratio = measurement.hidden_norm_ratio()
        if ratio.notnull().any():
            place = int(ratio.fillna(-np.inf).values.argmax())
            depth = int(data["depth_index"].values[place])
            cards.append(
                Headline(
                    f"{float(ratio[place]):.3g} ×", f"largest hidden norm of position 0 over others: depth {depth}"
                )
            )
    if "value_norm" in data:
        ratio = measurement.value_norm_ratio()
        if ratio.notnull().any():
            place = int(ratio.fillna(np.inf).values.argmin())
            layer = int(data["layer_index"].values[place])
            cards.append(
                Headline(
                    f"{float(ratio[place]):.3g} ×", f"smallest value norm of position 0 over others: layer {layer}"
                )
            )
    return cards


def _massive(data: xr.Dataset) -> list[Headline]:
    """Entries by both criteria [X8] and by the relative one alone, as (position, dimension) pairs."""
    tops = data["hidden_top"].transpose("sample", "depth", "top").values
    median = data["hidden_median"].transpose("sample", "depth").values
    both, relative = is_massive(tops, median), is_massive(tops, median, magnitude=NEGLIGIBLE)
    return [
        Headline(
            str(_places(data, both) or "none"),
            "massive activations (entries over 100 and 1000 × the median); over 1000 × the median alone: "
            f"{_places(data, relative) or 'none'}",
        )
    ]


def _places(data: xr.Dataset, found: np.ndarray) -> int:
    position = data["hidden_top_position"].transpose("sample", "depth", "top").values[found]
    dimension = data["hidden_top_dimension"].transpose("sample", "depth", "top").values[found]
    return len({*zip(position.tolist(), dimension.tolist(), strict=True)})
