"""Questions about the first positions of every window: a fixed token, or random ones.

Source: Gu et al. 2025, section 5 and Table 10.
"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import FromRecipe, Has, Question, Variation, more_models, most_models, times

STUDY = FromRecipe(job="replication")
BASE = range(13)
SECTION_5, TABLE_10 = "Gu et al. 2025, section 5", "Gu et al. 2025, Table 10"
BOS = 0  # its id in the tokenizers that recipes train
MASSIVE = 4.0  # 13 untrained models have norm ratios of 2.7 to 4.0


def fixed(position: int) -> dict[str, Any]:
    """Changes that put the BOS over the token at a position of every window, and nowhere else."""
    token = {"kind": "fixed_token", "position": position, "token": BOS}
    return {"data.bos": "none", "data.interventions": [token]}


def drawn(start: int, stop: int) -> dict[str, Any]:
    """Changes that put random tokens at positions [start, stop)."""
    return {"data.interventions": [{"kind": "random_tokens", "start": start, "stop": stop}]}


fixed_token = Question(
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

fixed_positions = Question(
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

RANDOM = (
    Variation("text", {}, {"sink_0": 18.18}),
    Variation("first random", drawn(0, 1), {"sink_0": 27.03}),
    Variation("two random", drawn(0, 2), {"sink_0": 1.98, "sink_1": 14.08}),
    Variation("second random", drawn(1, 2), {"sink_0": 20.99}),
)
MOVED = (
    more_models(
        "two random",
        "text",
        Has("sink_1", 1.0),
        "moved",
        "more models have a rate of 1 % at position 1 where the first two tokens are random than on text",
        SECTION_5,
    ),
    more_models(
        "first random",
        "text",
        Has("sink_0", 1.0),
        "stronger",
        "more models have a rate of 1 % at position 0 where the first token is random than on text",
        SECTION_5,
    ),
)

random_tokens = Question(
    name="random-tokens",
    asks="Where is the sink when the first tokens are random?",
    source=SECTION_5,
    base=STUDY,
    seeds=6,
    shared={"data.bos": "none"},
    variations=RANDOM,
    assertions=MOVED,
    not_at={"nano": "nano has no sink without its fixed BOS in 1,500 steps; 'random-tokens-longer' asks in 6,000"},
)

random_tokens_longer = Question(
    name="random-tokens-longer",
    asks="Where is the sink when the first tokens are random, in four times the steps?",
    source=SECTION_5,
    base=STUDY,
    seeds=range(3, 9),
    shared={"data.bos": "none", "steps": times(4.0)},
    variations=RANDOM,
    assertions=MOVED,
    not_at=dict.fromkeys(("mini", "paper"), "it asks what can be asked at nano"),
)

QUESTIONS = (fixed_token, fixed_positions, random_tokens, random_tokens_longer)
