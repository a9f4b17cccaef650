"""Questions about what a model reads in training [D1 to D3, K2]."""

from __future__ import annotations

from typing import Any

from sinkscope.experiments.effects import below, gap, level
from sinkscope.experiments.question import Question, Variation, above

TABLE_10 = "D3; Gu et al. 2025, Table 10"
BOS = 0  # its id in the tokenizers that recipes train


def fixed(position: int) -> dict[str, Any]:
    """Changes that put the BOS over the token at a position of every window, and nowhere else."""
    token = {"kind": "fixed_token", "position": position, "token": BOS}
    return {"data.bos": "none", "data.interventions": [token]}


fixed_token = Question(
    name="fixed-token",
    asks="Does the sink follow a token that always stands at one position?",
    rows=("D3",),
    source=TABLE_10,
    variations=(
        Variation("BOS at 0", {}, {"sink_0": 74.11}),
        Variation("token at 2", fixed(2), {"sink_2": 69.64, "sink_0": 0.0}),
        Variation("no fixed token", {"data.bos": "none"}, {"sink_0": 18.18}),
    ),
    assertions=(
        above(
            3.0,
            level("sink_2", "token at 2"),
            "follows",
            "with a fixed token at position 2, more than 3 % of heads have their sink there",
            TABLE_10,
        ),
        above(
            -1.0,
            below("sink_0", "token at 2"),
            "leaves the first",
            "with a fixed token at position 2, less than 1 % of heads have their sink at position 0",
            TABLE_10,
        ),
        above(
            3.0,
            gap("sink_0", "BOS at 0", "no fixed token"),
            "grows",
            "a fixed BOS at position 0 raises the sink rate there by more than 3 points",
            TABLE_10,
        ),
    ),
)

QUESTIONS = (fixed_token,)
