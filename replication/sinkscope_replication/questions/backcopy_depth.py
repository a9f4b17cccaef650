"""Does the residual peak need several layers?"""

from __future__ import annotations

from functools import partial

from sinkscope.experiments import Has, Question, Variation, more_models, task

GUO = "Guo et al. 2024a"
STARTED = "Runs start from torch's N(0, 1) embeddings, as in the authors' code; smaller ones learn without a sink."
THREE_LAYERS = {"model.num_hidden_layers": 3}

on_backcopy = partial(
    Question,
    source=GUO,
    base=task("bigram_backcopy"),
    shown=("excess_triggers", "excess_others", "bos_attention", "output_ratio", "value_ratio", "norm_ratio"),
    note=STARTED,
    seeds=7,
)

QUESTION = on_backcopy(
    name="backcopy-depth",
    asks="Does the residual peak need several layers?",
    variations=(Variation("1 layer", seeds=6), Variation("3 layers", THREE_LAYERS, seeds=6)),
    assertions=(
        more_models(
            "3 layers",
            "1 layer",
            Has("norm_ratio", 2.0),
            "peak in three",
            "more models have a BOS twice as long as the others with three layers than with one",
            GUO,
        ),
    ),
)
