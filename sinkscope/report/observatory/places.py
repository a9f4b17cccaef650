"""Where in a measurement to look: the position of its strongest sink, and the positions a reader may choose."""

from __future__ import annotations

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float

from sinkscope.probes.metrics import comparable, layer_rates, nanmean

PER_HEAD = ("sample", "layer", "head", "position")
CHOICES = 16
CAUSAL = "decoder"


def sample_lengths(data: xr.Dataset, stack: str | None = None) -> np.ndarray:
    """Real tokens of each sample, in one stack or in the longest."""
    tokens = data["tokens"].transpose("sample", "layer").values
    return tokens[:, rows_of(data, stack)].max(1)


def rows_of(data: xr.Dataset, stack: str | None) -> Bool[np.ndarray, "layer"]:
    """The layers of a stack; all for None."""
    stacks = data["stack"].values
    return np.full(len(stacks), True) if stack is None else stacks == stack


def rates(data: xr.Dataset, epsilon: float) -> Float[np.ndarray, "position"]:
    """Sink rate per position; NaN where fewer than half of a causal layer's queries see it, in every sample.

    A layer, or a sample, whose queries see a position too seldom does not count there.
    """
    received = data["attention_received"].transpose(*PER_HEAD).values
    by_layer = layer_rates(received, epsilon)
    for row, stack in enumerate(data["stack"].values):
        counted = comparable(data["tokens"].values[:, row], data["position"].values, str(stack) == CAUSAL)
        by_layer[:, row] = np.where(counted, by_layer[:, row], np.nan)
    return nanmean(nanmean(by_layer, 1), 0)


def strongest(data: xr.Dataset, epsilon: float) -> tuple[int, float]:
    """The position with the highest sink rate, and that rate in percent; the first measured one where all are equal."""
    found = np.nan_to_num(rates(data, epsilon), nan=-1.0)
    best = int(found.argmax())
    return int(data["position"].values[best]), max(float(found[best]), 0.0)


def choices(data: xr.Dataset, epsilon: float) -> list[int]:
    """Positions that a reader may choose: the first 16 and the strongest."""
    positions = [int(position) for position in data["position"].values]
    best = [strongest(data, epsilon)[0]] if "attention_received" in data else []
    return sorted({*positions[:CHOICES], *best})
