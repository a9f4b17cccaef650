"""Questions on the trigger-conditional task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sinkscope.experiments.effects import below, level, metric_gap
from sinkscope.experiments.job import Job
from sinkscope.experiments.question import Question, Variation, above

ONLY_NANO = "the task has one size"
NOTHING_EMPTY = {"empty_first": False}
TASK = "trigger-conditional task: rows that sum to one need a sink for it, ReLU attention does not"


def after_trigger(scale: str, changes: Mapping[str, Any]) -> Job:
    """A question's base: the trigger-conditional task, with fields changed."""
    from sinkscope.experiments.tasks.conditional import trigger_conditional

    return trigger_conditional(scale, changes)


conditional = Question(
    name="trigger-conditional",
    note="The claims were written down after one seed of five operations had been seen; no margin was changed since.",
    asks="Must attention whose rows sum to one have a sink, to give nothing where nothing is asked for?",
    rows=("A14", "A24", "A8"),
    source=TASK,
    base=after_trigger,
    shown=("loss", "output", "first", "slot", "total", "total/triggers"),
    variations=(
        Variation("softmax"),
        Variation("relu", {"attention": "relu"}),
        Variation("sigmoid", {"attention": "sigmoid_bias"}),
        Variation("off-by-one", {"attention": "softmax_off_by_one"}),
        Variation("k_bias", {"attention": "k_bias"}),
        Variation("softmax, nothing empty", NOTHING_EMPTY),
        Variation("relu, nothing empty", {"attention": "relu", **NOTHING_EMPTY}),
        Variation("off-by-one, nothing empty", {"attention": "softmax_off_by_one", **NOTHING_EMPTY}),
    ),
    assertions=(
        above(
            -0.1,
            lambda runs: -max(runs[label]["loss"] for label in ("softmax", "relu", "sigmoid", "off-by-one", "k_bias")),
            "learned",
            "every operation learns the task: an error below a tenth of what giving nothing costs",
            TASK,
        ),
        above(
            0.5,
            level("first", "softmax"),
            "softmax has a sink",
            "under softmax queries that shall give nothing have more than half of their weight on the first token",
            TASK,
        ),
        above(-0.1, below("first", "relu"), "relu has none", "under ReLU less than 0.1", TASK),
        above(-0.1, below("first", "sigmoid"), "sigmoid has none", "under a sigmoid less than 0.1", TASK),
        above(
            0.3,
            metric_gap("off-by-one", "slot", "first"),
            "off-by-one's slot takes it",
            "under softmax-off-by-one the slot has more than the first token, by more than 0.3",
            "A24; Miller 2023",
        ),
        above(
            0.3,
            metric_gap("k_bias", "slot", "first"),
            "the key bias takes it",
            "under a key bias that bias has more than the first token, by more than 0.3",
            "A8; Gu et al. 2025, Table 4",
        ),
        above(
            0.3,
            level("loss", "softmax, nothing empty"),
            "softmax needs it",
            "where no token is empty softmax fails: an error above 0.3 of what giving nothing costs",
            TASK,
        ),
        above(
            -0.1,
            lambda runs: -max(runs[f"{label}, nothing empty"]["loss"] for label in ("relu", "off-by-one")),
            "others do not",
            "there ReLU and softmax-off-by-one stay below a tenth",
            TASK,
        ),
    ),
    not_at={"mini": ONLY_NANO, "paper": ONLY_NANO},
)

QUESTIONS = (conditional,)
