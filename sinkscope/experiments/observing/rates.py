"""Sink rates and masses, none of them read on fewer than 32 tokens, over the paper's T − k queries."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope import metrics
from sinkscope.experiments.observed import Metrics
from sinkscope.measurements import PAPER, received, sample_lengths, strongest_position
from sinkscope.metrics import FEWEST
from sinkscope.probes import AttentionReceived, Measurement, measure

Windows = Mapping[str, Tensor]  # model inputs by name: `input_ids` and, where windows number them, `document_ids`

TOKENS, EPSILON, BATCH = 64, 0.3, 20
EPSILONS = (0.2, 0.3, 0.4, 0.5)


def long_enough(measurement: Measurement) -> bool:
    """Whether every row has the tokens that a rate needs."""
    return bool(sample_lengths(measurement.data).min(initial=FEWEST) >= FEWEST)


def alpha(measurement: Measurement) -> Float[np.ndarray, "sample layer head position"]:
    """Attention received over T − k, whatever the masks: as the study has it of windows and packed documents."""
    return received(measurement.data, denominator=PAPER)


def rates(measurement: Measurement, epsilon: float = EPSILON) -> list[float]:
    """Sink rate of each measured position, percent; NaN on short texts."""
    return _or_nan(measurement, metrics.sink_rate(alpha(measurement), epsilon).tolist())


def masses(measurement: Measurement) -> list[float]:
    """`metrics.sink_mass` of each measured position, percent; NaN on short texts."""
    return _or_nan(measurement, metrics.sink_mass(alpha(measurement)).tolist())


def lifts(measurement: Measurement) -> list[float]:
    """`metrics.step` of each measured position; NaN on short texts."""
    return _or_nan(measurement, metrics.step(alpha(measurement)).tolist())


def strongest(measurement: Measurement) -> tuple[float, float]:
    """The strongest position and its sink rate; NaN on short texts, and where nothing could be measured."""
    found = strongest_position(measurement.data, EPSILON, PAPER) if long_enough(measurement) else None
    return (math.nan, math.nan) if found is None else (float(found.position), found.rate)


def at_first(name: str, model: PreTrainedModel, inputs: Tensor | Windows) -> Metrics:
    """`sink_0/NAME` and `sink_mass/NAME`: both of position 0, percent."""
    seen = measure(model, inputs, [AttentionReceived([0])], batch_size=BATCH, apart=False)
    yield f"sink_0/{name}", rates(seen)[0]
    yield f"sink_mass/{name}", masses(seen)[0]


def on_tokens(measurement: Measurement, tokens: int) -> Metrics:
    """What is read of a text's first tokens: the rates of position 0, its mass, and the strongest position."""
    name = f"tokens={tokens}"
    yield f"sink_0/{name}", rates(measurement)[0]
    for epsilon in EPSILONS:
        yield f"sink_0/{name}/epsilon={epsilon:g}", rates(measurement, epsilon)[0]
    yield f"sink_mass/{name}", masses(measurement)[0]
    yield f"strongest_position/{name}", strongest(measurement)[0]


def _or_nan(measurement: Measurement, values: list[float]) -> list[float]:
    return values if long_enough(measurement) else [math.nan] * len(values)
