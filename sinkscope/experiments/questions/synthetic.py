"""Questions on synthetic tasks: Bigram-Backcopy [X26, C11] and the trigger-conditional task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sinkscope.experiments.effects import below, curve_correlation, gap, level, metric_gap
from sinkscope.experiments.job import Job
from sinkscope.experiments.question import Question, Variation, above

GUO = "X26; Guo et al. 2024"
SHOWN = ("excess_triggers", "excess_others", "bos_attention", "output_ratio", "value_ratio", "norm_ratio")
ONLY_NANO = "the task has one size"
STARTED = (
    "With the lab model's own small initial embeddings the task is learned without a sink (one seed was tried). The "
    "runs start from torch's N(0, 1), as the authors' code does; that was changed after seeing this."
)
THREE_LAYERS = {"model.num_hidden_layers": 3}
SGD = {"optimizer.name": "sgd", "optimizer.momentum": 0.9, "optimizer.lr": 0.3}


def bigram_backcopy(scale: str, changes: Mapping[str, Any]) -> Job:
    """A question's base: the Bigram-Backcopy task at a scale, with fields changed."""
    from sinkscope.experiments.tasks.backcopy import backcopy

    return backcopy(scale, changes)


def after_trigger(scale: str, changes: Mapping[str, Any]) -> Job:
    """A question's base: the trigger-conditional task, with fields changed."""
    from sinkscope.experiments.tasks.conditional import trigger_conditional

    return trigger_conditional(scale, changes)


backcopy_ = Question(
    name="backcopy",
    note=STARTED,
    asks="Does a head that copies at triggers make the BOS its sink everywhere else?",
    rows=("X26", "C11"),
    source=GUO,
    base=bigram_backcopy,
    shown=SHOWN,
    variations=(Variation("AdamW"),),
    assertions=(
        above(
            -0.1,
            below("excess_triggers", "AdamW"),
            "learned",
            "at triggers the loss is less than 0.1 nats above the least possible, 0",
            GUO,
        ),
        above(
            0.5,
            level("bos_attention", "AdamW"),
            "sink",
            "queries that are no triggers give the BOS more than half of their attention",
            GUO,
        ),
        above(
            0.5,
            metric_gap("AdamW", "bos_attention", "bos_attention/triggers"),
            "active at triggers",
            "triggers give it less, by more than 0.5",
            GUO,
        ),
        above(
            -0.5,
            below("output_ratio", "AdamW"),
            "dormant elsewhere",
            "elsewhere the head writes less than half as much as at triggers",
            GUO,
        ),
        above(
            -0.5,
            below("value_ratio", "AdamW"),
            "value drain",
            "the BOS's value is less than half as long as the others'",
            GUO,
        ),
        above(
            1.0,
            metric_gap("AdamW", "excess_triggers/zero_head", "excess_triggers"),
            "needed at triggers",
            "without the head the loss at triggers rises by more than 1 nat",
            "X26, C11; Guo et al. 2024",
        ),
        above(
            -0.1,
            metric_gap("AdamW", "excess_others", "excess_others/zero_head"),
            "a no-op elsewhere",
            "and elsewhere by less than 0.1 nats",
            "X26, C11; Guo et al. 2024",
        ),
    ),
)

dynamics = Question(
    name="backcopy-dynamics",
    asks="Do attention on the BOS and the drain of its value feed each other?",
    rows=("X26",),
    source=GUO,
    base=bigram_backcopy,
    shown=SHOWN,
    variations=(Variation("AdamW"),),
    assertions=(
        above(
            0.5,
            lambda runs: -curve_correlation("AdamW", "task/bos_attention", "task/value_ratio")(runs),
            "together",
            "over the evaluations the BOS's value shortens as its attention grows: rank correlation below −0.5",
            GUO,
        ),
        above(
            0.5,
            curve_correlation("AdamW", "task/bos_attention", "task/logit_gap"),
            "logits grow",
            "and its logits rise above the others': rank correlation above 0.5",
            GUO,
        ),
    ),
)

optimiser = Question(
    name="backcopy-optimiser",
    asks="Does the optimiser make the residual peak, and not the sink?",
    rows=("X26", "X23"),
    source=GUO,
    base=bigram_backcopy,
    shown=SHOWN,
    shared=THREE_LAYERS,
    variations=(Variation("AdamW"), Variation("SGD with momentum", SGD)),
    assertions=(
        above(
            -0.1,
            lambda runs: -max(runs[label]["excess_triggers"] for label in ("AdamW", "SGD with momentum")),
            "learned",
            "both learn the task: less than 0.1 nats above 0 at triggers",
            GUO,
        ),
        above(
            2.0,
            level("norm_ratio", "AdamW"),
            "peak under AdamW",
            "under AdamW the BOS's residual stream is more than twice as long as the others' at some depth",
            GUO,
        ),
        above(
            -1.5,
            below("norm_ratio", "SGD with momentum"),
            "no peak under SGD",
            "under SGD it is nowhere longer than 1.5 times the others'",
            GUO,
        ),
        above(0.3, level("bos_attention", "AdamW"), "sink under AdamW", "in some head the BOS gets more than 0.3", GUO),
        above(
            0.3,
            level("bos_attention", "SGD with momentum"),
            "sink under SGD",
            "and so it does under SGD",
            GUO,
        ),
    ),
)

relu = Question(
    name="backcopy-relu",
    asks="Does ReLU attention do without the sink?",
    rows=("X26", "A14"),
    source=GUO,
    base=bigram_backcopy,
    shown=SHOWN,
    variations=(Variation("softmax"), Variation("relu", {"attention": "relu"})),
    assertions=(
        above(
            -0.2,
            below("excess_triggers", "relu"),
            "learned",
            "ReLU attention learns the copying: less than 0.2 nats above 0 at triggers",
            GUO,
        ),
        above(
            0.3,
            gap("bos_attention", "softmax", "relu"),
            "no sink",
            "the BOS's share of the attention elsewhere is lower than softmax's by more than 0.3",
            GUO,
        ),
        above(
            0.3,
            gap("value_ratio", "relu", "softmax"),
            "no drain",
            "the length of its value, in terms of the others', is higher by more than 0.3",
            GUO,
        ),
    ),
)

NOTHING_EMPTY = {"empty_first": False}
TASK = "trigger-conditional task: rows that sum to one need a sink for it, ReLU attention does not"

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

QUESTIONS = (backcopy_, dynamics, optimiser, relu, conditional)
