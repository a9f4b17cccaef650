"""Whether a sink's key lies apart from all other keys of its head (Gu et al. 2025, section 3)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.experiments import Metrics
from sinkscope.measurement import PAPER, KeyVectors, Measurement, measure, metrics, received


def keys_apart(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], measured: Measurement, position: float, batch_size: int
) -> Metrics:
    """How far the keys at the sink lie from the strongest directions of all others, over a random direction's angle.

    In the head that gives the sink at `position` the most attention: `key_angle`, and `key_angle/others`, the mean of
    the same over keys at all other positions, each against those at positions other than its own
    (`metrics.key_angles`). Cosines and lengths of keys cannot show this: keys may be far from the sink's and as far
    from each other. Nothing without a sink.
    """
    if math.isnan(position):
        return
    places = [int(place) for place in measured.data["position"].values]
    at_sink = received(measured.data, denominator=PAPER)[..., places.index(int(position))]
    strength = metrics.nanmean(at_sink, 0)
    layer, head = np.unravel_index(np.nanargmax(strength), strength.shape)
    data = measure(
        model, inputs, [KeyVectors(len(inputs["input_ids"]), places)], batch_size=batch_size, apart=False
    ).data
    keys = data["key_vectors"].transpose("kept", "layer", "head", "kept_position", "key_dim").values[:, layer, head]
    angles = metrics.key_angles(keys)
    yield "key_angle", float(angles[places.index(int(position))])
    yield "key_angle/others", float(metrics.nanmean(np.delete(angles, places.index(int(position))), 0))
