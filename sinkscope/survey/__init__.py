"""Surveys: many models on several inputs, one at a time, into one table (Gu et al. 2025, Tables 1 and 8)."""

from sinkscope.survey.progress import Progress
from sinkscope.survey.result import Survey
from sinkscope.survey.rows import LayerRate, Row
from sinkscope.survey.running import survey
from sinkscope.survey.spec import Entry, SurveySpec, load_spec

__all__ = ["Entry", "LayerRate", "Progress", "Row", "Survey", "SurveySpec", "load_spec", "survey"]
