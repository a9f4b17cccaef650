"""A measurement of images, by kind of token [X5]."""

from __future__ import annotations

import numpy as np
import pandas as pd

from sinkscope.errors import InputError
from sinkscope.probes import metrics
from sinkscope.probes.measurements.measurement import Measurement


def patches(measurement: Measurement, cutoff: float | None, times: float) -> pd.DataFrame:
    """See `Measurement.patches`."""
    prefix, norms, received = _vision(measurement)
    artefacts = metrics.artefact_patches(norms, len(prefix), cutoff=cutoff, times=times)
    return metrics.patch_table(norms, received, prefix, artefacts)


def artefacts(measurement: Measurement, cutoff: float | None, times: float) -> np.ndarray:
    """See `Measurement.artefact_patches`."""
    prefix, norms, _ = _vision(measurement)
    return metrics.artefact_patches(norms, len(prefix), cutoff=cutoff, times=times)


def _vision(measurement: Measurement) -> tuple[list[str], np.ndarray, np.ndarray | None]:
    """Names of the tokens before the patches, norms at the last depth, attention received."""
    data = measurement.data
    if "hidden_norm" not in data or "vision" not in data["depth_stack"].values:
        raise InputError("this measurement has no norms of a vision stack (observer HiddenNorms)")
    norms = data["hidden_norm"].values[:, data["depth_stack"].values == "vision"][:, -1]
    norms = norms[:, ~np.isnan(norms).all(0)]
    received = None
    if "attention_received" in data:
        received = data["attention_received"].values[:, data["stack"].values == "vision"][..., : norms.shape[1]]
    return measurement.record.get("vision_prefix", []), norms, received
