"""Questions on the trigger-conditional task."""

from __future__ import annotations

from sinkscope.experiments import Question, Variation, above, below, task
from sinkscope.experiments.effects import largest_of, level, metric_gap

ONLY_NANO = "the task has one size"
NOTHING_EMPTY = {"empty_first": False}
TASK = "Ran-Milo 2026, trigger-conditional task: rows that sum to one need a sink for it, ReLU attention does not"


conditional = Question(
    name="trigger-conditional",
    note="The claims were written after one seed of five operations had been seen; no margin was changed since. Those "
    "on shares were added after all runs: rows that need not sum to one hold little weight off triggers, and that "
    "little may still go to the first token. That the slot of softmax-off-by-one takes the weight was ascribed to "
    "Miller 2023: it is our prediction. That every operation learns the task stood first once; it is a condition.",
    asks="Does attention whose rows sum to one need a sink, to give nothing where nothing is asked for?",
    source=TASK,
    base=task("trigger_conditional"),
    shown=("loss", "output", "first", "first_share", "slot", "total", "total/triggers"),
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
            0.5,
            level("first", "softmax"),
            "softmax has a sink",
            "under softmax queries that shall give nothing have more than half of their weight on the first token",
            TASK,
        ),
        below(
            0.1,
            largest_of("loss", ("softmax", "relu", "sigmoid", "off-by-one", "k_bias")),
            "learned",
            "every operation learns the task: an error below a tenth of what giving nothing costs",
            TASK,
        ),
        below(
            0.1,
            level("first", "relu"),
            "relu gives it nothing",
            "under ReLU queries that shall give nothing give the first token a weight of less than 0.1",
            TASK,
        ),
        below(
            0.1,
            level("first", "sigmoid"),
            "sigmoid gives it nothing",
            "under a sigmoid queries that shall give nothing give the first token a weight of less than 0.1",
            TASK,
        ),
        below(
            0.3,
            level("first_share", "relu"),
            "relu: no share",
            "under ReLU the first token has less than 0.3 of the weight in the rows of these queries",
            TASK,
        ),
        below(
            0.3,
            level("first_share", "sigmoid"),
            "sigmoid: no share",
            "under a sigmoid the first token has less than 0.3 of the weight in the rows of these queries",
            TASK,
        ),
        above(
            0.3,
            metric_gap("off-by-one", "slot", "first"),
            "off-by-one's slot takes it",
            "under softmax-off-by-one the slot has more weight than the first token, by more than 0.3",
            "our prediction, not that of Miller 2023",
        ),
        above(
            0.3,
            metric_gap("k_bias", "slot", "first"),
            "the key bias takes it",
            "with a key bias that bias has more weight than the first token, by more than 0.3",
            "Gu et al. 2025, Table 4",
        ),
        above(
            0.3,
            level("loss", "softmax, nothing empty"),
            "softmax needs it",
            "where no token is empty softmax fails the task: an error above 0.3 of what giving nothing costs",
            TASK,
        ),
        below(
            0.1,
            largest_of("loss", ("relu, nothing empty", "off-by-one, nothing empty")),
            "others do not",
            "where no token is empty ReLU and softmax-off-by-one learn the task: an error below a tenth",
            TASK,
        ),
    ),
    not_at={"mini": ONLY_NANO, "paper": ONLY_NANO},
)

QUESTIONS = (conditional,)
