"""Old names, for one release: changes of attention weights are interventions, choosing them is a trial."""

from __future__ import annotations

import importlib
import warnings

MOVED = {
    **{
        name: f"interventions.{name}"
        for name in ("ACT", "HeadChange", "InRows", "Reweigh", "Temperature", "VisualRedistribution")
    },
    **{name: f"interventions.{name}" for name in ("keep", "kept", "release", "load_calibrated")},
    "save": "interventions.save_calibrated",
    **{name: f"trials.{name}" for name in ("Chosen", "Option", "StoredChoice", "zero_tuning")},
    "METHODS": "trials.CALIBRATIONS",
    "Method": "trials.CalibrationMethod",
    "Scores": "trials.TextScores",
    "scores": "trials.text_scores",
    "search": "trials.choose_heads",
    "stored": "trials.stored_choice",
    "choose": "trials.calibration_trial",
    "Choice": "trials.StoredChoice",
}


def __getattr__(name: str) -> object:
    if name not in MOVED:
        raise AttributeError(f"module 'sinkscope.calibration' has no attribute '{name}'")
    room, _, new = MOVED[name].partition(".")
    value = getattr(importlib.import_module(f"sinkscope.{room}"), new)
    warnings.warn(f"sinkscope.calibration.{name} is sinkscope.{MOVED[name]} now", DeprecationWarning, stacklevel=2)
    return value
