"""When does the sink emerge in training?"""

from __future__ import annotations

import math

from sinkscope.experiments import (
    LARGEST,
    FromRecipe,
    Observed,
    Question,
    Variation,
    above,
    curve_correlation,
    half_way,
    last,
    most_models,
)

STUDY = FromRecipe(job="replication")
BASE = range(13)

RATE, MASS = "sink/position_0", "sink/mass"

FIGURE_4 = "Gu et al. 2025, Figure 4"


def grown(run: Observed) -> bool | None:
    """Whether the sink rate grows by more than a point after the first quarter of the steps."""
    late, early = last(run, RATE), last(run, RATE, 0.25)
    return None if math.isnan(late - early) else late - early > 1.0


def steady(run: Observed) -> bool | None:
    """Whether the sink mass rises with the steps: a rank correlation of .8 and more."""
    value = curve_correlation("run", MASS, "step")({"run": run})
    return None if math.isnan(value) else value >= 0.8


QUESTION = Question(
    name="emergence",
    asks="When does the sink emerge in training?",
    source=FIGURE_4,
    base=STUDY,
    seeds=BASE,
    variations=(Variation("softmax", {}, {"sink_0": 18.18, "loss": 3.73}),),
    assertions=(
        most_models(
            "softmax",
            grown,
            "after the start",
            "in most models the sink rate grows by more than 1 point after the first quarter of the steps",
            FIGURE_4,
        ),
        most_models(
            "softmax",
            steady,
            "steadily",
            "in most models the sink mass rises with the steps (rank correlation of .8 and more)",
            FIGURE_4,
        ),
        above(
            0.0,
            lambda runs: half_way(runs["softmax"], MASS) - half_way(runs["softmax"], f"{LARGEST}prefix_matching"),
            "after a head that matches prefixes",
            "the sink mass is half way later than the largest prefix-matching score of a head (share of the steps)",
            "our question, after Olsson et al. 2022",
        ),
    ),
)
