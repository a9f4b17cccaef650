"""Where steps times learning rate is the same, does the larger rate make the stronger sink?"""

from __future__ import annotations

from sinkscope.experiments import FromRecipe, Question, Variation, above_ratio, rising, times

STUDY = FromRecipe(job="replication")
NEW_BASE = range(13, 25)
NEW = range(13, 19)
TABLE_9 = "Gu et al. 2025, Table 9"

QUESTION = Question(
    name="equal-product",
    asks="Where steps times learning rate is the same, does the larger rate make the stronger sink?",
    source=TABLE_9,
    base=STUDY,
    seeds=NEW,
    variations=(
        Variation(
            "lr x 2, half", {"optimizer.lr": times(2.0), "steps": times(1 / 2.0)}, {"sink_0": 23.44, "loss": 3.79}
        ),
        Variation("lr, all steps", {}, {"sink_0": 18.18, "loss": 3.73}, seeds=NEW_BASE),
        Variation(
            "lr / 2, twice",
            {"optimizer.lr": times(1 / 2), "steps": times(1 / (1 / 2))},
            {"sink_0": 16.81, "loss": 3.68},
        ),
    ),
    assertions=(
        above_ratio(
            1.0,
            rising("sink_mass", ("lr / 2, twice", "lr, all steps", "lr x 2, half"), log=True),
            "monotone",
            "the larger rate with fewer steps has more sink mass",
            TABLE_9,
        ),
    ),
)
