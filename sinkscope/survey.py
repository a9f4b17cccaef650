"""The former name of many models in `sinkscope.measurement`, for one release."""

from sinkscope.registry import moved

NAMES = {
    "Entry": "SurveyEntry",
    "LayerRate": "LayerRate",
    "Progress": "SurveyProgress",
    "Row": "SurveyRow",
    "Survey": "Survey",
    "SurveySpec": "SurveySpec",
    "load_spec": "load_survey",
    "survey": "measure_models",
}

__getattr__ = moved(__name__, {old: f"sinkscope.measurement.{new}" for old, new in NAMES.items()})
