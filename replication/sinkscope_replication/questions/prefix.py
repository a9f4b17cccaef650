"""Where is the sink in prefix language modeling?"""

from __future__ import annotations

from sinkscope.experiments import FromRecipe, Observed, Question, Variation, more_models

STUDY = FromRecipe(job="replication")
SECTION_6 = "Gu et al. 2025, section 6"


def in_prefix(run: Observed) -> bool | None:
    """Whether a position of the prefix after the first has a rate of 1 %."""
    rates = [run[f"sink_{position}"] for position in range(1, 5)]
    return None if any(rate != rate for rate in rates) else max(rates) >= 1.0


PREFIXES = (Variation("causal"), Variation("prefix of 5", {"loss.prefix": 5}))

WITHIN = (
    more_models(
        "prefix of 5",
        "causal",
        in_prefix,
        "within the prefix",
        "more models have a rate of 1 % at the second to fifth position with a prefix of 5 tokens than without one",
        SECTION_6,
    ),
)

QUESTION = Question(
    name="prefix",
    asks="Where is the sink in prefix language modeling?",
    source=SECTION_6,
    base=STUDY,
    seeds=6,
    shared={"data.bos": "none"},
    variations=PREFIXES,
    assertions=WITHIN,
    not_at={
        "nano": "nano has no sink without its fixed BOS in 1,500 steps, and with one the BOS is in the prefix; "
        "'prefix-longer' asks in 6,000"
    },
)
