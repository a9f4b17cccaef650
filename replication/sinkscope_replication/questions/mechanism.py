"""Questions about what makes a sink, and what it does, in a finished model (Gu et al. 2025, sections 3 and 7)."""

from __future__ import annotations

import math
from dataclasses import replace

from sinkscope.experiments import (
    FromRecipe,
    Has,
    Observed,
    Question,
    Variation,
    above_ratio,
    log_quotient,
    log_ratio,
    more_models,
    most_models,
)

STUDY = FromRecipe(job="replication")
BASE = range(13)
SINK = Has("sink_0", 3.0)
SECTION_3, SECTION_7 = "Gu et al. 2025, section 3, Figure 2", "Gu et al. 2025, section 7"
SOFTMAX = Variation("softmax", {"attention": "softmax"}, {"sink_0": 18.18, "loss": 3.73}, BASE)
NO_TOKEN = Variation("no fixed token", {"data.bos": "none"}, seeds=6)

no_op = Question(
    name="no-op",
    asks="Does a head do nothing while it attends to the sink?",
    source=SECTION_7,
    base=STUDY,
    seeds=range(10, 17),
    variations=(replace(SOFTMAX, seeds=None),),
    assertions=(
        most_models(
            "softmax",
            Has("resting/on_sink", at_most=0.5),
            "writes less than half",
            "in most models with a sink head, queries with more than .8 of their weight on the sink get less than half "
            "as much written as those with less than .2",
            SECTION_7,
        ),
        above_ratio(
            1.25,
            log_quotient("softmax", "resting/controls", "resting/on_sink"),
            "less than other heads",
            "that ratio is more than 1.25 times smaller than in the heads of the same layer without the sink, at the "
            "same queries",
            SECTION_7,
        ),
    ),
    shown=("resting/heads", "resting/on_sink", "resting/controls", "sink_mass", "sink_0", "loss"),
)


def later_blocks(run: Observed) -> bool | None:
    """Whether the first block has less sink mass at the strongest position than the three after it on average."""
    first, *rest = (run[f"sink_mass/strongest/layer={layer}"] for layer in range(4))
    mean = math.fsum(rest) / len(rest)
    return None if math.isnan(first + mean) else first < mean


inside = Question(
    name="sink-head",
    asks="What makes a sink inside a head, and where in the model is it?",
    source="Gu et al. 2025, sections 3 and 7, Figure 2",
    base=STUDY,
    seeds=BASE,
    variations=(SOFTMAX, NO_TOKEN),
    assertions=(
        most_models(
            "softmax",
            SINK,
            "in a small model",
            "most models of 1.3 million parameters have a sink at position 0",
            "Gu et al. 2025, Table 8",
        ),
        most_models(
            "softmax",
            Has("top_head/cosine_gap", 0.3),
            "the angle",
            "in most models the mean cosine of queries with the sink's key exceeds that with other keys by .3, in the "
            "head with the strongest sink",
            SECTION_3,
        ),
        most_models(
            "softmax",
            Has("top_head/key_ratio", at_most=1.25),
            "not the length",
            "in most models the sink's key is at most 1.25 times as long as the others",
            SECTION_3,
        ),
        most_models(
            "softmax",
            Has("top_head/value_ratio", at_most=0.5),
            "a small value",
            "in most models the sink's value is at most half as long as the others",
            SECTION_3,
        ),
        most_models(
            "softmax",
            Has("key_angle", 0.0, minus="key_angle/others"),
            "a key apart",
            "in most models the sink's key is further from the strongest directions of the other keys than they are "
            "from each other's (a statistic of ours)",
            SECTION_3,
        ),
        more_models(
            "softmax",
            "no fixed token",
            Has("norm_ratio", 4.0),
            "massive activation",
            "more models have a massive activation with a fixed BOS, and so a sink, than without",
            "Gu et al. 2025, section 3; Sun et al. 2024",
        ),
        above_ratio(
            1.25,
            log_ratio("kurtosis_neurons", "softmax", "no fixed token"),
            "in few channels",
            "the kurtosis over channels is more than 1.25 times as large as without a fixed BOS, and so without a sink",
            "slides of Gu et al. 2025",
        ),
        most_models(
            "softmax",
            later_blocks,
            "fewer in early blocks",
            "in most models the first block has less sink mass than the three after it on average",
            "Gu et al. 2025, section 3",
        ),
    ),
    shown=("sink_mass", "top_head/alpha", "top_head/cosine_gap", "top_head/key_ratio", "top_head/value_ratio"),
    not_at=dict.fromkeys(("mini", "paper"), "its layers are those of nano"),
)

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

moved_positions = Question(
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

QUESTIONS = (no_op, inside, moved_positions)
