"""Does the sink follow a token that always stands at one position?"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import FromRecipe, Has, Question, Variation, more_models, most_models

STUDY = FromRecipe(job="replication")
BASE = range(13)

SECTION_5, TABLE_10 = "Gu et al. 2025, section 5", "Gu et al. 2025, Table 10"

BOS = 0  # its id in the tokenizers that recipes train
MASSIVE = 4.0  # 13 untrained models have norm ratios of 2.7 to 4.0


def fixed(position: int) -> dict[str, Any]:
    """Changes that put the BOS over the token at a position of every window, and nowhere else."""
    token = {"kind": "fixed_token", "position": position, "token": BOS}
    return {"data.bos": "none", "data.interventions": [token]}


QUESTION = Question(
    name="fixed-token",
    asks="Does the sink follow a token that always stands at one position?",
    source=TABLE_10,
    base=STUDY,
    seeds=6,
    variations=(
        Variation("BOS at 0", {"data.bos": "fixed"}, {"sink_0": 74.11}, seeds=BASE),
        Variation("token at 2", fixed(2), {"sink_2": 69.64, "sink_0": 0.0}),
        Variation("no fixed token", {"data.bos": "none"}, {"sink_0": 18.18, "loss": 3.73}),
    ),
    assertions=(
        more_models(
            "token at 2",
            "BOS at 0",
            Has("sink_2", 1.0),
            "follows",
            "more models have a rate of 1 % at position 2 where the fixed token is there than where it is at 0",
            TABLE_10,
        ),
        most_models(
            "token at 2",
            Has("strongest_position", 2, 2),
            "nowhere else",
            "in most models with the token at 2 no other position has a higher rate",
            TABLE_10,
        ),
        more_models(
            "BOS at 0",
            "no fixed token",
            Has("sink_0", 3.0),
            "makes the sink",
            "more models have a sink with a fixed BOS than without a fixed token",
            TABLE_10,
        ),
        more_models(
            "BOS at 0",
            "no fixed token",
            Has("norm_ratio/strongest", MASSIVE),
            "and the massive activation",
            "more models have a massive activation with a fixed BOS than without a fixed token",
            SECTION_5,
        ),
    ),
)
