"""Calibration: less or more weight on chosen tokens of a running model, exactly and without attention maps.

A line for each name, new methods too.
"""

import importlib
import warnings
from typing import Any

from sinkscope.calibration.act import ACT as ACT
from sinkscope.calibration.choosing import Chosen as Chosen
from sinkscope.calibration.choosing import Option as Option
from sinkscope.calibration.choosing import search as search
from sinkscope.calibration.editing import HeadChange as HeadChange
from sinkscope.calibration.in_rows import InRows as InRows
from sinkscope.calibration.methods import METHODS as METHODS
from sinkscope.calibration.methods import Method as Method
from sinkscope.calibration.reweigh import Reweigh as Reweigh
from sinkscope.calibration.saving import keep as keep
from sinkscope.calibration.saving import kept as kept
from sinkscope.calibration.saving import load_calibrated as load_calibrated
from sinkscope.calibration.saving import release as release
from sinkscope.calibration.saving import save as save
from sinkscope.calibration.scoring import Scores as Scores
from sinkscope.calibration.scoring import scores as scores
from sinkscope.calibration.storing import StoredChoice as StoredChoice
from sinkscope.calibration.storing import stored as stored
from sinkscope.calibration.temperature import Temperature as Temperature
from sinkscope.calibration.visual import VisualRedistribution as VisualRedistribution
from sinkscope.calibration.zero_tuning import zero_tuning as zero_tuning

_MOVED = {"choose": ("sinkscope.trials", "calibration_trial"), "Choice": ("sinkscope.calibration", "StoredChoice")}


def __getattr__(name: str) -> Any:
    if name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home, new = _MOVED[name]
    warnings.warn(f"sinkscope.calibration.{name} is {home}.{new} now", DeprecationWarning, stacklevel=2)
    return getattr(importlib.import_module(home), new)
