"""Do attention to the BOS and the shrinking of its value need each other?"""

from __future__ import annotations

from sinkscope.experiments import Has, Question, Variation, more_models, task

GUO = "Guo et al. 2024a"
SINK = Has("bos_attention", 0.5)
DRAINED = Has("value_ratio", at_most=0.5)

ALL, LOGITS, VALUE = "all trained", "logits to the BOS frozen", "value of the BOS frozen"

QUESTION = Question(
    name="backcopy-minimal",
    asks="Do attention to the BOS and the shrinking of its value need each other?",
    note="The source trains this model as well; freezing a part is our way of asking which makes which.",
    source=GUO,
    base=task("bigram_backcopy_minimal"),
    seeds=6,
    shown=("excess_triggers", "excess_others", "bos_attention", "copy_attention", "logit_gap", "value_ratio"),
    variations=(
        Variation(ALL),
        Variation(LOGITS, {"frozen": "bos_logits"}),
        Variation(VALUE, {"frozen": "bos_value"}),
    ),
    assertions=(
        more_models(
            ALL,
            LOGITS,
            DRAINED,
            "no drain without attention",
            "fewer models drain the BOS's value where the logits to it are frozen at 0",
            GUO,
        ),
        more_models(
            ALL,
            VALUE,
            SINK,
            "no sink without drain",
            "fewer models have the sink where the BOS's value is frozen",
            GUO,
        ),
    ),
)
