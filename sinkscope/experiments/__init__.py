"""The paper's questions as experiments: variations of a recipe, claims stated beforehand, verdicts with spread."""

from sinkscope.experiments.effects import (
    below,
    diverges,
    gap,
    gap_at_equal_loss,
    level,
    peak,
    range_of,
    rising,
)
from sinkscope.experiments.findings import Findings, verdicts
from sinkscope.experiments.observed import Observed
from sinkscope.experiments.question import Assertion, Question, Variation, above
from sinkscope.experiments.questions import QUESTIONS
from sinkscope.experiments.registry import find
from sinkscope.experiments.running import run

__all__ = [
    "QUESTIONS",
    "Assertion",
    "Findings",
    "Observed",
    "Question",
    "Variation",
    "above",
    "below",
    "diverges",
    "find",
    "gap",
    "gap_at_equal_loss",
    "level",
    "peak",
    "range_of",
    "rising",
    "run",
    "verdicts",
]
