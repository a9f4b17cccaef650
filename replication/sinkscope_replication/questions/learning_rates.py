"""Does the sink grow over the paper's four learning rates?"""

from __future__ import annotations

from sinkscope.experiments import FromRecipe, Question, Variation, above_ratio, rising, times

STUDY = FromRecipe(job="replication")
NEW_BASE = range(13, 25)
NEW = range(13, 19)
TABLE_9 = "Gu et al. 2025, Table 9"
LR_4 = Variation("lr / 4", {"optimizer.lr": times(1 / 4)}, {"sink_0": 2.90, "loss": 3.92})

QUESTION = Question(
    name="learning-rates",
    asks="Does the sink grow over the paper's four learning rates?",
    source=TABLE_9,
    base=STUDY,
    seeds=NEW,
    variations=(
        LR_4,
        Variation("lr / 2", {"optimizer.lr": times(1 / 2)}, {"sink_0": 11.21, "loss": 3.78}),
        Variation("lr", {}, {"sink_0": 18.18, "loss": 3.73}, seeds=NEW_BASE),
        Variation("lr x 2", {"optimizer.lr": times(2.0)}, {"sink_0": 32.23, "loss": 3.70}),
    ),
    assertions=(
        above_ratio(
            1.25,
            rising("sink_mass", ("lr / 4", "lr / 2", "lr", "lr x 2"), log=True),
            "monotone",
            "the sink mass rises more than 1.25 times from a quarter of the learning rate to twice of it",
            TABLE_9,
        ),
    ),
)
