"""The paper's questions as experiments: variations of a recipe, claims stated beforehand, verdicts with spread.

What makes runs is imported when it is first used: what was found can be read without torch.
"""

from __future__ import annotations

from importlib import import_module
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
from sinkscope.experiments.question import (
    RECIPE_OF,
    SCALES,
    Assertion,
    Question,
    Variation,
    above,
    below,
    recipe,
    task,
    within,
)
from sinkscope.experiments.questions import QUESTIONS, find, questions_in

if TYPE_CHECKING:
    from sinkscope.experiments.running import Progress as Progress
    from sinkscope.experiments.running import backend_named as backend_named
    from sinkscope.experiments.running import run as run
    from sinkscope.experiments.sweep.store import RunStore as RunStore
    from sinkscope.experiments.sweep.sweeping import Sweep as Sweep

LATER = {
    "Progress": "running",
    "RunStore": "sweep.store",
    "Sweep": "sweep.sweeping",
    "backend_named": "running",
    "run": "running",
}

__all__ = [
    "QUESTIONS",
    "RECIPE_OF",
    "SCALES",
    "Assertion",
    "Findings",
    "Observed",
    "Progress",
    "Question",
    "RunStore",
    "Sweep",
    "Variation",
    "above",
    "backend_named",
    "below",
    "diverges",
    "find",
    "gap",
    "gap_at_equal_loss",
    "level",
    "peak",
    "questions_in",
    "range_of",
    "recipe",
    "rising",
    "run",
    "task",
    "verdicts",
    "within",
]


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{LATER[name]}"), name)
