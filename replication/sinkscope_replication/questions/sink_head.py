"""What makes a sink inside a head, and where in the model is it?"""

from __future__ import annotations

import math

from sinkscope.experiments import (
    FromRecipe,
    Has,
    Observed,
    Question,
    Variation,
    above_ratio,
    log_ratio,
    more_models,
    most_models,
)

STUDY = FromRecipe(job="replication")
BASE = range(13)
SINK = Has("sink_0", 3.0)
SECTION_3 = "Gu et al. 2025, section 3, Figure 2"
SOFTMAX = Variation("softmax", {"attention": "softmax"}, {"sink_0": 18.18, "loss": 3.73}, BASE)
NO_TOKEN = Variation("no fixed token", {"data.bos": "none"}, seeds=6)


def later_blocks(run: Observed) -> bool | None:
    """Whether the first block has less sink mass at the strongest position than the three after it on average."""
    first, *rest = (run[f"sink_mass/strongest/layer={layer}"] for layer in range(4))
    mean = math.fsum(rest) / len(rest)
    return None if math.isnan(first + mean) else first < mean


QUESTION = Question(
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
