"""Does the sink depend on the feed-forward network's activation?"""

from __future__ import annotations

from sinkscope.experiments import FromRecipe, Has, Question, Variation, most_models

STUDY = FromRecipe(job="replication")
BASE = range(13)
SINK = Has("sink_0", 3.0)

TABLE_3, TABLE_11, TABLE_12 = (f"Gu et al. 2025, Table {number}" for number in (3, 11, 12))

FEED_FORWARD = {
    "relu": (16.90, 3.82),
    "gelu": (14.76, 3.79),
    "swish": (17.89, 3.80),
    "reglu": (13.88, 3.75),
    "geglu": (17.86, 3.73),
    "swiglu": (18.18, 3.73),
}

QUESTION = Question(
    name="feed-forward",
    asks="Does the sink depend on the feed-forward network's activation?",
    source=TABLE_11,
    base=STUDY,
    seeds=(3, 4, 5),
    variations=tuple(
        Variation(ffn, {"model.ffn": ffn}, {"sink_0": sink, "loss": loss}, BASE if ffn == "swiglu" else None)
        for ffn, (sink, loss) in FEED_FORWARD.items()
    ),
    assertions=(
        most_models(
            ("relu", "gelu", "swish", "reglu", "geglu"),
            SINK,
            "always",
            "most models with ReLU, GELU, Swish, ReGLU and GEGLU have a sink",
            TABLE_11,
        ),
    ),
)
