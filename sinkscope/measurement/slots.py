"""The attention that slots receive: learned sinks, key biases, anything a query may attend to besides tokens.

This attention is missing from every position: a model may have its sink in a slot, and a sink rate of 0 at all tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from jaxtyping import Float

from sinkscope.measurement import metrics
from sinkscope.measurement.metrics import Interval
from sinkscope.measurement.rates import interval_words
from sinkscope.measurement.selection import need
from sinkscope.statistics import share_interval

WHAT = "slots (learned sinks, key biases: no tokens)"


@dataclass(frozen=True)
class SlotMass:
    """How much of the attention slots receive.

    `mass`: mean weight on slots, 0 to 1, over the heads and layers that have any, with its interval over samples (NaN
    where activations are); `rate`: percent of samples, layers and heads in which it exceeds epsilon; `layers`: how many
    of the `of` attention layers have slots; `samples`: how many there are.
    """

    mass: Interval
    rate: float
    layers: int
    of: int
    samples: int

    def sentence(self, epsilon: float) -> str:
        """The finding in words."""
        if np.isnan(self.mass.value):
            return f"what {WHAT} receive cannot be said: activations are NaN or infinite"
        where = "" if self.layers == self.of else f" of the {self.layers} of {self.of} layers that have some"
        return (
            f"{WHAT} receive {100 * self.mass.value:.1f} % of the attention{where} "
            f"({interval_words(100 * self.mass.low, 100 * self.mass.high, self.samples)}), over {epsilon:g} of it in "
            f"{self.rate:.1f} % of (layer, head) pairs"
        )

    def to_json(self) -> dict[str, float | int | None]:
        """`mass`, `low`, `high` (0 to 1), `rate` (percent), `layers`: JSON-able; missing numbers are None."""
        numbers = {"mass": self.mass.value, "low": self.mass.low, "high": self.mass.high, "rate": self.rate}
        values = {name: None if np.isnan(value) else float(value) for name, value in numbers.items()}
        return {**values, "layers": self.layers}


def slot_mass(data: xr.Dataset, epsilon: float = 0.3) -> SlotMass | None:
    """See `SlotMass`; None if no layer has slots. Raises `InputError` for an epsilon outside (0, 1)."""
    if "slot_received" not in data:
        return None
    received = _received(data)
    by_sample = metrics.nanmean(metrics.nanmean(received, 2), 1)
    having = int((~np.isnan(received)).any((0, 2)).sum())
    return SlotMass(
        share_interval(np.clip(by_sample, 0, 1)),
        float(metrics.sink_rate(received[..., None], epsilon)[0]),
        having,
        data.sizes["layer"],
        data.sizes["sample"],
    )


def slot_mass_by_layer(data: xr.Dataset) -> Float[np.ndarray, "layer"]:
    """Mean weight on slots of each layer, 0 to 1; NaN if it has none. Raises `InputError` if no layer has one."""
    return metrics.nanmean(metrics.nanmean(_received(data), 2), 0)


def _received(data: xr.Dataset) -> Float[np.ndarray, "sample layer head"]:
    return need(data, "slot_received", "SlotReceived").transpose("sample", "layer", "head").values
