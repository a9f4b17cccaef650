"""Questions as experiments: variations of a recipe, claims fixed before their runs, grades.

What makes runs is imported when it is first used: results can be read without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sinkscope.experiments.effects import (
    Contrast,
    Has,
    Runs,
    SeedEffect,
    SeedWise,
    Shares,
    curve_correlation,
    gap,
    gap_at_equal_loss,
    half_way,
    largest,
    last,
    least,
    level,
    log_level,
    log_quotient,
    log_ratio,
    log_ratio_at_equal_loss,
    metric_gap,
    onset,
    peak,
    range_of,
    rising,
)
from sinkscope.experiments.expected import Expected, expected, on_processor
from sinkscope.experiments.findings import RESULTS, Findings, known, path_of, read_findings, with_rows
from sinkscope.experiments.grading import Judged, check_apart, labels_read, standing_of, verdicts, without_sinks
from sinkscope.experiments.observed import CURVES, LARGEST, Metrics, Observed
from sinkscope.experiments.question import (
    RECIPE_OF,
    SCALES,
    TIMES,
    Assertion,
    FromRecipe,
    Question,
    Scale,
    Variation,
    above,
    above_ratio,
    below,
    more_models,
    most_models,
    recipe,
    task,
    times,
    within,
)
from sinkscope.experiments.registration import Registration, Standing
from sinkscope.experiments.registries import QUESTIONS, find, questions_in  # so that entry points are taken
from sinkscope.experiments.rows import Key, key_of, keys, read_rows, write_rows
from sinkscope.registry import moved

if TYPE_CHECKING:
    from sinkscope.experiments.jobs import Job as Job
    from sinkscope.experiments.jobs import LabTraining as LabTraining
    from sinkscope.experiments.jobs import Task as Task
    from sinkscope.experiments.jobs import training_metrics as training_metrics
    from sinkscope.experiments.jobs import training_windows as training_windows
    from sinkscope.experiments.jobs import validation_windows as validation_windows
    from sinkscope.experiments.running import SweepProgress as SweepProgress
    from sinkscope.experiments.running import backend_named as backend_named
    from sinkscope.experiments.running import run as run
    from sinkscope.experiments.sweep.store import RunStore as RunStore
    from sinkscope.experiments.sweep.sweeping import Sweep as Sweep

LATER = {
    "Job": "jobs",
    "LabTraining": "jobs",
    "SweepProgress": "running",
    "RunStore": "sweep.store",
    "Sweep": "sweep.sweeping",
    "Task": "jobs",
    "backend_named": "running",
    "run": "running",
    "training_metrics": "jobs",
    "training_windows": "jobs",
    "validation_windows": "jobs",
}

__all__ = [
    "CURVES",
    "LARGEST",
    "QUESTIONS",
    "RECIPE_OF",
    "RESULTS",
    "SCALES",
    "TIMES",
    "Assertion",
    "Contrast",
    "Expected",
    "Findings",
    "FromRecipe",
    "Has",
    "Job",
    "Judged",
    "Key",
    "LabTraining",
    "Metrics",
    "Observed",
    "Question",
    "Registration",
    "RunStore",
    "Runs",
    "Scale",
    "SeedEffect",
    "SeedWise",
    "Shares",
    "Standing",
    "Sweep",
    "SweepProgress",
    "Task",
    "Variation",
    "above",
    "above_ratio",
    "backend_named",
    "below",
    "check_apart",
    "curve_correlation",
    "expected",
    "find",
    "gap",
    "gap_at_equal_loss",
    "half_way",
    "key_of",
    "keys",
    "known",
    "labels_read",
    "largest",
    "last",
    "least",
    "level",
    "log_level",
    "log_quotient",
    "log_ratio",
    "log_ratio_at_equal_loss",
    "metric_gap",
    "more_models",
    "most_models",
    "on_processor",
    "onset",
    "path_of",
    "peak",
    "questions_in",
    "range_of",
    "read_findings",
    "read_rows",
    "recipe",
    "rising",
    "run",
    "standing_of",
    "task",
    "times",
    "training_metrics",
    "training_windows",
    "validation_windows",
    "verdicts",
    "with_rows",
    "within",
    "without_sinks",
    "write_rows",
]


def _later(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{LATER[name]}"), name)


__getattr__ = moved(
    __name__,
    {"read": "sinkscope.experiments.read_findings", "Progress": "sinkscope.experiments.SweepProgress"},
    _later,
)  # old names, for one release
