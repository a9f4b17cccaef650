"""Where is the sink when the first tokens are random, in four times the steps?"""

from __future__ import annotations

from typing import Any

from sinkscope.experiments import FromRecipe, Has, Question, Variation, more_models, times

STUDY = FromRecipe(job="replication")
SECTION_5 = "Gu et al. 2025, section 5"


def drawn(start: int, stop: int) -> dict[str, Any]:
    """Changes that put random tokens at positions [start, stop)."""
    return {"data.interventions": [{"kind": "random_tokens", "start": start, "stop": stop}]}


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

QUESTION = Question(
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
