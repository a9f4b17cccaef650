"""The paper's questions as experiments: variations of a recipe, claims stated beforehand, verdicts with spread.

`run` is imported when it is first used: what was found can be read without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sinkscope.experiments.effects import (
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
from sinkscope.experiments.question import Assertion, Question, Variation, above, below, within
from sinkscope.experiments.questions import QUESTIONS, find

if TYPE_CHECKING:
    from sinkscope.experiments.running import run as run

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
    "within",
]


def __getattr__(name: str) -> Any:
    if name != "run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sinkscope.experiments import running

    return running.run
