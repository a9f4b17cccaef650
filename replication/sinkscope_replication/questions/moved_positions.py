"""With learned positions, is it the first position's embedding that makes the sink?"""

from __future__ import annotations

from sinkscope.experiments import FromRecipe, Has, Question, Variation, most_models

STUDY = FromRecipe(job="replication")
SINK = Has("sink_0", 3.0)
OTHERS = (4, 9, 14, 19, 24)  # positions exchanged with the first, 0-based (Gu et al. 2025, Table 7)

BARE, WITH_BOS = "learned positions", "learned positions, fixed BOS"

TABLE_7 = "Gu et al. 2025, Table 7, GPT2-XL on one repeated token"
REPLACED = dict(zip(OTHERS, (0.20, 2.36, 7.73, 10.63, 10.97), strict=True))
SWAPPED = dict(zip(OTHERS, ((1.44, 57.63), (3.73, 54.48), (6.78, 52.81), (8.95, 51.70), (9.42, 51.13)), strict=True))
ON_REPEATED = Has("sink_0/repeated", 3.0)

PUBLISHED_7 = {
    "sink_0/repeated": 62.28,
    **{f"sink_0/replaced={other}": sink for other, sink in REPLACED.items()},
    **{f"sink_{other}/replaced={other}": 0.0 for other in REPLACED},
    **{f"sink_0/swapped={other}": first for other, (first, _) in SWAPPED.items()},
    **{f"sink_{other}/swapped={other}": sink for other, (_, sink) in SWAPPED.items()},
}

QUESTION = Question(
    name="moved-positions",
    asks="With learned positions, is it the first position's embedding that makes the sink?",
    source=TABLE_7,
    base=STUDY,
    seeds=range(3, 10),
    shared={"model.position": "learned"},
    variations=(
        Variation(BARE, {"data.bos": "none"}, PUBLISHED_7 | {"sink_0": 33.13}),
        Variation(WITH_BOS, {"data.bos": "fixed"}),
    ),
    assertions=(
        most_models(BARE, SINK, "without a BOS", "most models have a sink without a fixed BOS", "Table 3: 33.13 %"),
        most_models(
            WITH_BOS,
            ON_REPEATED,
            "on one repeated token",
            "most models have a sink at the first of one repeated token",
            TABLE_7,
        ),
        most_models(
            WITH_BOS,
            Has("sink_0/repeated", 3.0, minus="sink_0/replaced=4"),
            "replaced",
            "in most models its rate falls by 3 points when the first position gets the embedding of the fifth",
            TABLE_7,
            among={WITH_BOS: ON_REPEATED},
        ),
        most_models(
            WITH_BOS,
            Has("sink_4/swapped=4", 3.0, minus="sink_0/swapped=4"),
            "swapped",
            "in most models the fifth position has the higher rate, by 3 points, when it swaps embeddings with it",
            TABLE_7,
            among={WITH_BOS: ON_REPEATED},
        ),
    ),
)
