"""Does an optimizer that learns faster bring the sink earlier?"""

from __future__ import annotations

from sinkscope.experiments import FromRecipe, Has, Question, Variation, above, gap, more_models

STUDY = FromRecipe(job="replication")
FRESH_BASE, FRESH = range(31, 37), range(13, 19)  # no earlier run of these variations has such a seed
OURS = "ours; one run of each at 700 steps: a loss of 3.05 and a rate of .8 % with Muon, 3.41 and 1.9 % with AdamW"

QUESTION = Question(
    name="faster-learning",
    asks="Does an optimizer that learns faster bring the sink earlier?",
    source=OURS,
    base=STUDY,
    seeds=FRESH,
    variations=(
        Variation("AdamW", {}, seeds=FRESH_BASE),
        Variation("Muon", {"optimizer.name": "muon"}),
    ),
    assertions=(
        more_models(
            "AdamW",
            "Muon",
            Has("sink_0", 3.0),
            "a later sink",
            "after as many steps fewer models have a sink with Muon than with AdamW",
            OURS,
        ),
        above(
            0.1,
            gap("loss", "AdamW", "Muon"),
            "a lower loss",
            "the validation loss with Muon ends more than .1 nats below that with AdamW",
            OURS,
            symmetric=True,
        ),
    ),
    not_at=dict.fromkeys(("mini", "paper"), "its seeds are fresh at nano"),
)
