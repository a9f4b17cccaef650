"""A question on the minimal model of the Bigram-Backcopy task [X26]: what feeds what."""

from __future__ import annotations

from sinkscope.experiments.effects import curve_correlation, gap, level
from sinkscope.experiments.question import Question, Variation, above, below, task

GUO = "X26; Guo et al. 2024"
ALL, LOGITS, VALUE = "all trained", "logits to the BOS frozen", "value of the BOS frozen"


minimal = Question(
    name="backcopy-minimal",
    asks="Do attention on the BOS and the drain of its value need each other?",
    note="The claims were written down after the first 100 steps of one run had been seen. The source trains this "
    "model as well; freezing a part is our way of asking which makes which.",
    rows=("X26",),
    source=f"{GUO}: larger attention makes the value smaller, a smaller value the attention larger",
    base=task("bigram_backcopy_minimal"),
    shown=("excess_triggers", "excess_others", "bos_attention", "copy_attention", "logit_gap", "value_ratio"),
    variations=(
        Variation(ALL),
        Variation(LOGITS, {"frozen": "bos_logits"}),
        Variation(VALUE, {"frozen": "bos_value"}),
    ),
    assertions=(
        below(
            0.1,
            level("excess_triggers", ALL),
            "learned",
            "at triggers the loss is less than 0.1 nats above the least possible, 0",
            GUO,
        ),
        above(
            0.5,
            level("bos_attention", ALL),
            "sink",
            "queries that are no triggers give the BOS more than half of their attention",
            GUO,
        ),
        below(
            0.5,
            level("value_ratio", ALL),
            "value drain",
            "the BOS's value is less than half as long as the others'",
            GUO,
        ),
        below(
            -0.5,
            curve_correlation(ALL, "task/bos_attention", "task/value_ratio"),
            "together",
            "over the evaluations its value shortens as the attention grows: rank correlation below −0.5",
            GUO,
        ),
        above(
            0.3,
            gap("value_ratio", LOGITS, ALL),
            "no drain without attention",
            "where the logits to the BOS stay 0, its value ends longer, by more than 0.3 of the others'",
            GUO,
        ),
        above(
            0.1,
            gap("bos_attention", ALL, VALUE),
            "less attention without drain",
            "where its value stays as it was, it gets less attention, by more than 0.1",
            GUO,
        ),
    ),
)

QUESTIONS = (minimal,)
