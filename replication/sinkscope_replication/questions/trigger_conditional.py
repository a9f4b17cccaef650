"""Does attention whose rows sum to one need a sink, to give nothing where nothing is asked for?"""

from __future__ import annotations

from sinkscope.experiments import Has, Question, Variation, more_models, most_models, task

ONLY_NANO = "the task has one size"
NOTHING_EMPTY = {"empty_first": False}
TASK = "Ran-Milo 2026, trigger-conditional task: rows that sum to one need a sink for it, ReLU attention does not"

QUESTION = Question(
    name="trigger-conditional",
    asks="Does attention whose rows sum to one need a sink, to give nothing where nothing is asked for?",
    source=TASK,
    base=task("trigger_conditional"),
    seeds=6,
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
        more_models(
            "softmax",
            "relu",
            Has("first", 0.5),
            "softmax has a sink",
            "more models give the first token more than half of the weight, where nothing is asked for, with softmax "
            "than with ReLU attention",
            TASK,
        ),
        more_models(
            "softmax",
            "sigmoid",
            Has("first", 0.5),
            "sigmoid has none",
            "more models do so with softmax than with sigmoid attention",
            TASK,
        ),
        most_models(
            ("off-by-one", "k_bias"),
            Has("slot", 0.3, minus="first"),
            "a slot takes it",
            "in most models with softmax-off-by-one or a key bias it has .3 more weight than the first token",
            "our prediction; Gu et al. 2025, Table 4",
        ),
        more_models(
            "softmax, nothing empty",
            "relu, nothing empty",
            Has("loss", 0.3),
            "softmax needs it",
            "where no token is empty, more models fail the task with softmax than with ReLU attention: an error of "
            "above .3 of what giving nothing costs",
            TASK,
        ),
    ),
    not_at={"mini": ONLY_NANO, "paper": ONLY_NANO},
)
