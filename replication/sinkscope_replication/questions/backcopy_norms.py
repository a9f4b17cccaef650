"""Does the sink need LayerNorm?"""

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
    name="backcopy-norms",
    asks="Does the sink need LayerNorm?",
    seeds=3,
    variations=(
        Variation("LayerNorm"),
        Variation("RMSNorm", {"model.norm": "rmsnorm"}),
        Variation("LayerNorm behind sums", {"model.norm_placement": "post"}),
        Variation("no norm", {"model.norm": "none"}),
    ),
    assertions=(
        most_models(
            ("RMSNorm", "LayerNorm behind sums", "no norm"),
            SINK,
            "sink",
            "most models with RMSNorm, post-norm and no norm have the sink",
            GUO,
        ),
    ),
)
