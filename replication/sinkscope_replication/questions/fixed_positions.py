"""Is the sink where the fixed token is, at each of the first three positions?"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import FromRecipe, Has, Question, Variation, more_models

STUDY = FromRecipe(job="replication")
BASE = range(13)
TABLE_10 = "Gu et al. 2025, Table 10"
BOS = 0  # its id in the tokenizers that recipes train


def fixed(position: int) -> dict[str, Any]:
    """Changes that put the BOS over the token at a position of every window, and nowhere else."""
    token = {"kind": "fixed_token", "position": position, "token": BOS}
    return {"data.bos": "none", "data.interventions": [token]}


QUESTION = Question(
    name="fixed-positions",
    asks="Is the sink where the fixed token is, at each of the first three positions?",
    source=TABLE_10,
    base=STUDY,
    seeds=6,
    variations=(
        Variation("BOS at 0", {"data.bos": "fixed"}, {"sink_0": 74.11, "sink_1": 0.0, "sink_2": 0.0}, seeds=BASE),
        Variation("token at 1", fixed(1), {"sink_0": 0.0, "sink_1": 69.03, "sink_2": 0.0}, seeds=(3, 4, 5)),
        Variation("token at 2", fixed(2), {"sink_0": 0.0, "sink_1": 0.0, "sink_2": 69.64}),
    ),
    assertions=(
        more_models(
            "token at 1",
            ("BOS at 0", "token at 2"),
            Has("sink_1", 1.0),
            "at 1",
            "more models have a rate of 1 % at position 1 where the fixed token is there than where it is at 0 or 2",
            TABLE_10,
        ),
        more_models(
            "BOS at 0",
            ("token at 1", "token at 2"),
            Has("sink_0", 1.0),
            "at 0",
            "more models have a rate of 1 % at position 0 where the fixed token is there than where it is at 1 or 2",
            TABLE_10,
        ),
    ),
)
