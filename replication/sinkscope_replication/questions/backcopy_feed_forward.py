"""Does the sink need a feed-forward?"""

from __future__ import annotations

from functools import partial

from sinkscope.experiments import Has, Question, Variation, most_models, task

GUO = "Guo et al. 2024a"
STARTED = "Runs start from torch's N(0, 1) embeddings, as in the authors' code; smaller ones learn without a sink."
SINK = Has("bos_attention", 0.5)

on_backcopy = partial(
    Question,
    source=GUO,
    base=task("bigram_backcopy"),
    shown=("excess_triggers", "excess_others", "bos_attention", "output_ratio", "value_ratio", "norm_ratio"),
    note=STARTED,
    seeds=7,
)

QUESTION = on_backcopy(
    name="backcopy-feed-forward",
    asks="Does the sink need a feed-forward?",
    seeds=4,
    variations=(
        Variation("ReLU"),
        Variation("linear", {"model.ffn": "linear"}),
        Variation("none", {"model.ffn": "none"}),
    ),
    assertions=(
        most_models(
            ("linear", "none"), SINK, "sink", "most models with a linear or no feed-forward have the sink", GUO
        ),
    ),
)
