"""Where is the sink in prefix language modeling, where two random first tokens give one without a BOS?"""

from __future__ import annotations

import math

from sinkscope.experiments import FromRecipe, Observed, Question, Variation, more_models, times

STUDY = FromRecipe(job="replication")
TWO_RANDOM = {"kind": "random_tokens", "start": 0, "stop": 2}


def in_prefix(run: Observed) -> bool | None:
    """Whether a position of the prefix after the first has a rate of 1 %."""
    rates = [run[f"sink_{position}"] for position in range(1, 5)]
    return None if any(map(math.isnan, rates)) else max(rates) >= 1.0


QUESTION = Question(
    name="prefix-after-random",
    asks="Where is the sink in prefix language modeling, where two random first tokens give one without a BOS?",
    source="Gu et al. 2025, section 6",
    base=STUDY,
    seeds=range(6, 12),
    shared={"data.bos": "none", "data.interventions": [TWO_RANDOM], "steps": times(4.0)},
    variations=(Variation("causal"), Variation("prefix of 5", {"loss.prefix": 5})),
    assertions=(
        more_models(
            "prefix of 5",
            "causal",
            in_prefix,
            "within the prefix",
            "more models have a rate of 1 % at the second to fifth position with a prefix of 5 tokens than without one",
            "Gu et al. 2025, section 6",
        ),
    ),
    note="Without random tokens no model of this size has a sink that could move ('prefix-longer').",
    not_at=dict.fromkeys(("mini", "paper"), "it asks what can be asked at nano"),
)
