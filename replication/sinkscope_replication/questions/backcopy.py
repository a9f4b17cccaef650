"""Questions on the Bigram-Backcopy task (Guo et al. 2024a; Gu et al. 2025, section 7)."""

from __future__ import annotations

import math
from functools import partial

from sinkscope.experiments import (
    Has,
    Observed,
    Question,
    Variation,
    curve_correlation,
    more_models,
    most_models,
    task,
)

GUO = "Guo et al. 2024a"
STARTED = "Runs start from torch's N(0, 1) embeddings, as in the authors' code; smaller ones learn without a sink."
THREE_LAYERS = {"model.num_hidden_layers": 3}
SGD = {"optimizer.name": "sgd", "optimizer.momentum": 0.9, "optimizer.lr": 0.3}
LEARNED, SINK, DRAINED = (
    Has("excess_triggers", at_most=0.1),
    Has("bos_attention", 0.5),
    Has("value_ratio", at_most=0.5),
)


def correlated(run: Observed, curve: str, sign: int) -> bool | None:
    """Whether a curve follows the attention on the BOS: a rank correlation beyond .5 in the direction of `sign`."""
    value = sign * curve_correlation("run", "task/bos_attention", curve)({"run": run})
    return None if math.isnan(value) else value > 0.5


on_backcopy = partial(
    Question,
    source=GUO,
    base=task("bigram_backcopy"),
    shown=("excess_triggers", "excess_others", "bos_attention", "output_ratio", "value_ratio", "norm_ratio"),
    note=STARTED,
    seeds=7,
)

backcopy_ = on_backcopy(
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

dynamics = on_backcopy(
    name="backcopy-dynamics",
    asks="Do attention on the BOS and the drain of its value come together?",
    variations=(Variation("AdamW"),),
    assertions=(
        most_models(
            "AdamW",
            lambda run: correlated(run, "task/value_ratio", -1),
            "together",
            "in most models the BOS's value shortens as its attention grows: rank correlation below −.5",
            GUO,
        ),
        most_models(
            "AdamW",
            lambda run: correlated(run, "task/logit_gap", 1),
            "logits grow",
            "in most models the BOS's logits rise above the others' as its attention grows: rank correlation above .5",
            GUO,
        ),
    ),
)

depth = on_backcopy(
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

norms = on_backcopy(
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

feed_forward = on_backcopy(
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

optimizer = on_backcopy(
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

relu = on_backcopy(
    name="backcopy-relu",
    asks="Does ReLU attention do without the sink?",
    seeds=6,
    variations=(Variation("softmax"), Variation("relu", {"attention": "relu"})),
    assertions=(more_models("softmax", "relu", SINK, "fewer", "fewer models have the sink with ReLU attention", GUO),),
)

ALL, LOGITS, VALUE = "all trained", "logits to the BOS frozen", "value of the BOS frozen"

minimal = Question(
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


QUESTIONS = (backcopy_, dynamics, depth, norms, feed_forward, optimizer, relu, minimal)
