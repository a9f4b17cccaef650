"""Where steps times learning rate is the same, is a quarter of the rate weaker, in models trained after this?"""

from __future__ import annotations

from sinkscope.experiments import FromRecipe, Question, Variation, above_ratio, log_ratio, times

STUDY = FromRecipe(job="replication")
FRESH_BASE, FRESH = range(25, 31), range(13, 19)  # no earlier run of these variations has such a seed
TABLE_9 = "Gu et al. 2025, Table 9"

QUESTION = Question(
    name="fresh-equal-product",
    asks="Where steps times learning rate is the same, is the sink weaker at a half and a quarter of the rate?",
    source=TABLE_9,
    base=STUDY,
    seeds=FRESH,
    variations=(
        Variation("lr, all steps", {}, {"sink_0": 18.18, "loss": 3.73}, FRESH_BASE),
        Variation(
            "lr / 2, twice", {"optimizer.lr": times(1 / 2), "steps": times(2.0)}, {"sink_0": 16.81, "loss": 3.68}
        ),
        Variation("lr / 4, four times", {"optimizer.lr": times(1 / 4), "steps": times(4.0)}),
    ),
    assertions=tuple(
        above_ratio(
            1.0,
            log_ratio("sink_mass", "lr, all steps", label),
            name,
            f"the sink mass is larger than with {label} the steps",
            TABLE_9,
        )
        for label, name in (("lr / 2, twice", "a half"), ("lr / 4, four times", "a quarter"))
    ),
    not_at=dict.fromkeys(("mini", "paper"), "its seeds are fresh at nano"),
)
