"""Does a head do nothing while it attends to the sink?"""

from __future__ import annotations

from dataclasses import replace

from sinkscope.experiments import FromRecipe, Has, Question, Variation, above_ratio, log_quotient, most_models

STUDY = FromRecipe(job="replication")
BASE = range(13)
SECTION_7 = "Gu et al. 2025, section 7"
SOFTMAX = Variation("softmax", {"attention": "softmax"}, {"sink_0": 18.18, "loss": 3.73}, BASE)

QUESTION = Question(
    name="no-op",
    asks="Does a head do nothing while it attends to the sink?",
    source=SECTION_7,
    base=STUDY,
    seeds=range(10, 17),
    variations=(replace(SOFTMAX, seeds=None),),
    assertions=(
        most_models(
            "softmax",
            Has("resting/on_sink", at_most=0.5),
            "writes less than half",
            "in most models with a sink head, queries with more than .8 of their weight on the sink get less than half "
            "as much written as those with less than .2",
            SECTION_7,
        ),
        above_ratio(
            1.25,
            log_quotient("softmax", "resting/controls", "resting/on_sink"),
            "less than other heads",
            "that ratio is more than 1.25 times smaller than in the heads of the same layer without the sink, at the "
            "same queries",
            SECTION_7,
        ),
    ),
    shown=("resting/heads", "resting/on_sink", "resting/controls", "sink_mass", "sink_0", "loss"),
)
