"""The former name of many models in `sinkscope.measurement`, for one release."""

from __future__ import annotations

import importlib
import warnings

NOW = {
    "Entry": "SurveyEntry",
    "LayerRate": "LayerRate",
    "Progress": "SurveyProgress",
    "Row": "SurveyRow",
    "Survey": "Survey",
    "SurveySpec": "SurveySpec",
    "load_spec": "load_survey",
    "survey": "measure_models",
}


def __getattr__(name: str) -> object:
    if name not in NOW:
        raise AttributeError(f"module 'sinkscope.survey' has no attribute '{name}'")
    new = f"sinkscope.measurement.{NOW[name]}"
    warnings.warn(f"sinkscope.survey.{name} is {new} now", DeprecationWarning, stacklevel=2)
    return getattr(importlib.import_module("sinkscope.measurement"), NOW[name])
