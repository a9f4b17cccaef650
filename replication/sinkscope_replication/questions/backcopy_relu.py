"""Does ReLU attention do without the sink?"""

from __future__ import annotations

from functools import partial

from sinkscope.experiments import Has, Question, Variation, more_models, task

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
    name="backcopy-relu",
    asks="Does ReLU attention do without the sink?",
    seeds=6,
    variations=(Variation("softmax"), Variation("relu", {"attention": "relu"})),
    assertions=(more_models("softmax", "relu", SINK, "fewer", "fewer models have the sink with ReLU attention", GUO),),
)
