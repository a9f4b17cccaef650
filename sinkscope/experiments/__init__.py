"""The paper's questions as experiments: variations of a recipe, claims stated beforehand, verdicts with spread.

What makes runs is imported when it is first used: what was found can be read without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sinkscope.experiments import registering as registering  # so that entry points of questions are taken
from sinkscope.experiments.effects import (
    diverges,
    gap,
    gap_at_equal_loss,
    level,
    log_ratio,
    log_ratio_at_equal_loss,
    peak,
    range_of,
    rising,
)
from sinkscope.experiments.findings import Findings, after_holm, holds_after_holm, verdicts
from sinkscope.experiments.identities import is_synthetic
from sinkscope.experiments.observed import Observed
from sinkscope.experiments.paper import STATEMENTS, Answer, Said, answers, unanswered
from sinkscope.experiments.pooled import SHIPPED, Known, known, pooled
from sinkscope.experiments.question import (
    RECIPE_OF,
    SCALES,
    Assertion,
    Question,
    Variation,
    above,
    above_ratio,
    below,
    recipe,
    task,
    within,
)
from sinkscope.experiments.questions import QUESTIONS, find, questions_in
from sinkscope.experiments.queue.plan import Expected, Planned, expected, plan, require_hours, require_whole
from sinkscope.experiments.statements import Stated, stated

if TYPE_CHECKING:
    from sinkscope.experiments.queue.working import Queue as Queue
    from sinkscope.experiments.queue.working import work_off as work_off
    from sinkscope.experiments.running import Progress as Progress
    from sinkscope.experiments.running import backend_named as backend_named
    from sinkscope.experiments.running import run as run
    from sinkscope.experiments.sweep.store import RunStore as RunStore
    from sinkscope.experiments.sweep.sweeping import Sweep as Sweep

LATER = {
    "Progress": "running",
    "Queue": "queue.working",
    "RunStore": "sweep.store",
    "Sweep": "sweep.sweeping",
    "backend_named": "running",
    "run": "running",
    "work_off": "queue.working",
}

__all__ = [
    "QUESTIONS",
    "RECIPE_OF",
    "SCALES",
    "SHIPPED",
    "STATEMENTS",
    "Answer",
    "Assertion",
    "Expected",
    "Findings",
    "Known",
    "Observed",
    "Planned",
    "Progress",
    "Question",
    "Queue",
    "RunStore",
    "Said",
    "Stated",
    "Sweep",
    "Variation",
    "above",
    "above_ratio",
    "after_holm",
    "answers",
    "backend_named",
    "below",
    "diverges",
    "expected",
    "find",
    "gap",
    "gap_at_equal_loss",
    "holds_after_holm",
    "is_synthetic",
    "known",
    "level",
    "log_ratio",
    "log_ratio_at_equal_loss",
    "peak",
    "plan",
    "pooled",
    "questions_in",
    "range_of",
    "recipe",
    "require_hours",
    "require_whole",
    "rising",
    "run",
    "stated",
    "task",
    "unanswered",
    "verdicts",
    "within",
    "work_off",
]


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{LATER[name]}"), name)
