"""Old names, for one release: changes of attention weights are interventions, choosing them is a trial."""

from sinkscope.registry import moved

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

__getattr__ = moved(__name__, {old: f"sinkscope.{new}" for old, new in MOVED.items()})
