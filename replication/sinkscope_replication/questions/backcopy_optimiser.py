"""Does the optimizer make the residual peak, and not the sink?"""

from __future__ import annotations

from functools import partial

from sinkscope.experiments import Has, Question, Variation, more_models, task

GUO = "Guo et al. 2024a"
STARTED = "Runs start from torch's N(0, 1) embeddings, as in the authors' code; smaller ones learn without a sink."
THREE_LAYERS = {"model.num_hidden_layers": 3}
SGD = {"optimizer.name": "sgd", "optimizer.momentum": 0.9, "optimizer.lr": 0.3}

on_backcopy = partial(
    Question,
    source=GUO,
    base=task("bigram_backcopy"),
    shown=("excess_triggers", "excess_others", "bos_attention", "output_ratio", "value_ratio", "norm_ratio"),
    note=STARTED,
    seeds=7,
)

QUESTION = on_backcopy(
    name="backcopy-optimiser",
    asks="Does the optimizer make the residual peak, and not the sink?",
    shared=THREE_LAYERS,
    seeds=6,
    variations=(Variation("AdamW"), Variation("SGD with momentum", SGD)),
    assertions=(
        more_models(
            "AdamW",
            "SGD with momentum",
            Has("norm_ratio", 2.0),
            "no peak under SGD",
            "more models have a BOS twice as long as the others with AdamW than with SGD",
            GUO,
        ),
    ),
)
