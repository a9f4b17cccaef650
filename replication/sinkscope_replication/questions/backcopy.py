"""Does a head that copies at triggers make the BOS its sink everywhere else?"""

from __future__ import annotations

from functools import partial

from sinkscope.experiments import Has, Question, Variation, most_models, task

GUO = "Guo et al. 2024a"
STARTED = "Runs start from torch's N(0, 1) embeddings, as in the authors' code; smaller ones learn without a sink."

LEARNED, SINK, DRAINED = (
    Has("excess_triggers", at_most=0.1),
    Has("bos_attention", 0.5),
    Has("value_ratio", at_most=0.5),
)

on_backcopy = partial(
    Question,
    source=GUO,
    base=task("bigram_backcopy"),
    shown=("excess_triggers", "excess_others", "bos_attention", "output_ratio", "value_ratio", "norm_ratio"),
    note=STARTED,
    seeds=7,
)

QUESTION = on_backcopy(
    name="backcopy",
    asks="Does a head that copies at triggers make the BOS its sink everywhere else?",
    variations=(Variation("AdamW"),),
    assertions=(
        most_models(
            "AdamW",
            SINK,
            "sink",
            "in most models queries that are no triggers give the BOS more than half of their attention",
            GUO,
        ),
        most_models(
            "AdamW", LEARNED, "learned", "most models end less than .1 nats above the least loss at triggers", GUO
        ),
        most_models(
            "AdamW",
            Has("output_ratio", at_most=0.5),
            "dormant elsewhere",
            "in most models the head writes less than half as much elsewhere as at triggers",
            GUO,
        ),
        most_models(
            "AdamW",
            DRAINED,
            "value drain",
            "in most models the BOS's value is less than half as long as the others'",
            GUO,
        ),
    ),
)
