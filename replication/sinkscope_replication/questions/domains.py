"""Does the sink rate depend on the domain of the text it is measured on?"""

from __future__ import annotations

import math

from sinkscope.experiments import FromRecipe, Observed, Question, Variation, most_models

STUDY = FromRecipe(job="replication")
BASE = range(13)
DOMAINS = ("numpy", "stdlib", "topics", "torch", "transformers")


def alike(run: Observed) -> bool | None:
    """Whether the sink rate differs by at most 4 points over the domains of the corpus `python`."""
    rates = [run[f"sink_0/domain={domain}"] for domain in DOMAINS]
    return None if any(map(math.isnan, rates)) else max(rates) - min(rates) <= 4.0


QUESTION = Question(
    name="domains",
    asks="Does the sink rate depend on the domain of the text it is measured on?",
    source="Gu et al. 2025, appendix",
    base=STUDY,
    seeds=BASE,
    variations=(Variation("softmax"),),
    assertions=(
        most_models(
            "softmax",
            alike,
            "hardly",
            f"in most models the rate differs by at most 4 points over {', '.join(DOMAINS)}",
            "Gu et al. 2025: negligible over 17 domains of the Pile at thresholds of .2 and .3",
        ),
    ),
    not_at={"paper": "its corpus, streamed from the hub, has no domains"},
)
