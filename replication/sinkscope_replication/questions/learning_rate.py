"""Does a smaller learning rate weaken and delay the sink?"""

from __future__ import annotations

import math

from sinkscope.experiments import (
    FromRecipe,
    Has,
    Observed,
    Question,
    Variation,
    above_ratio,
    log_ratio_at_equal_loss,
    more_models,
    onset,
    times,
)

STUDY = FromRecipe(job="replication")
BASE = range(13)
SINK = Has("sink_0", 3.0)
MASS = "sink/mass"
TABLE_9 = "Gu et al. 2025, Table 9"
LR_4 = Variation("lr / 4", {"optimizer.lr": times(1 / 4)}, {"sink_0": 2.90, "loss": 3.92})


def early(run: Observed) -> bool | None:
    """Whether the sink rate reaches 1 % within three quarters of the steps."""
    share = onset(run, "sink/position_0", 1.0)
    return None if math.isnan(share) else share <= 0.75


QUESTION = Question(
    name="learning-rate",
    asks="Does a smaller learning rate weaken and delay the sink?",
    source=TABLE_9,
    base=STUDY,
    seeds=6,
    variations=(
        Variation("lr / 8", {"optimizer.lr": times(1 / 8)}),
        LR_4,
        Variation("lr", {}, {"sink_0": 18.18, "loss": 3.73}, seeds=BASE),
    ),
    assertions=(
        more_models(
            "lr",
            "lr / 4",
            SINK,
            "weaker",
            "more models have a sink with all of the learning rate than with a quarter",
            TABLE_9,
        ),
        more_models(
            "lr",
            "lr / 4",
            early,
            "later",
            "more models have a rate of 1 % within three quarters of the steps with all of the learning rate than with "
            "a quarter",
            "Gu et al. 2025, section 4",
        ),
        above_ratio(
            1.0,
            log_ratio_at_equal_loss("lr", "lr / 4", MASS),
            "weaker at equal loss",
            "at equal validation loss the sink mass is larger with all of the learning rate than with a quarter",
            "our question: the source compares equal steps",
        ),
    ),
)
