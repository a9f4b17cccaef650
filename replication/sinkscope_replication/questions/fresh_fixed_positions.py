"""Is the sink where the fixed token is, at positions 1 and 3, in models trained after this was written down?"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import FromRecipe, Has, Question, Variation, more_models

STUDY = FromRecipe(job="replication")
FRESH_BASE, FRESH = range(25, 31), range(13, 19)  # no earlier run of these variations has such a seed
TABLE_10 = "Gu et al. 2025, Table 10"
BOS = 0  # its id in the tokenizers that recipes train


def fixed(position: int) -> dict[str, Any]:
    """Changes that put the BOS over the token at a position of every window, and nowhere else."""
    token = {"kind": "fixed_token", "position": position, "token": BOS}
    return {"data.bos": "none", "data.interventions": [token]}


def follows(position: int) -> Any:
    """More models have a sink there where the token is there."""
    return more_models(
        f"token at {position}",
        "BOS at 0",
        Has(f"sink_{position}", 1.0),
        f"at {position}",
        f"more models have a rate of 1 % at position {position} where the fixed token is there than where it is at 0",
        TABLE_10,
    )


QUESTION = Question(
    name="fresh-fixed-positions",
    asks="Is the sink where the fixed token is, at positions 1 and 3, in models trained after this was written down?",
    source=TABLE_10,
    base=STUDY,
    seeds=FRESH,
    variations=(
        Variation("BOS at 0", {}, {"sink_0": 74.11, "sink_1": 0.0, "sink_2": 0.0}, FRESH_BASE),
        Variation("token at 1", fixed(1), {"sink_0": 0.0, "sink_1": 69.03, "sink_2": 0.0}),
        Variation("token at 3", fixed(3)),
    ),
    assertions=(follows(1), follows(3)),
    not_at=dict.fromkeys(("mini", "paper"), "its seeds are fresh at nano"),
)
