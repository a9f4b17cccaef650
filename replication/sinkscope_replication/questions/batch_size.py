"""Does the batch size matter, at equal tokens?"""

from __future__ import annotations

import math

from sinkscope.experiments import FromRecipe, Has, Question, Variation, most_models, rising, times, within

STUDY = FromRecipe(job="replication")
NEW_BASE = range(13, 25)
NEW = range(13, 19)
SINK = Has("sink_0", 3.0)
TABLE_10 = "Gu et al. 2025, Table 10"
BATCHES = ("a quarter", "half", "all", "twice")

QUESTION = Question(
    name="batch-size",
    asks="Does the batch size matter, at equal tokens?",
    source=TABLE_10,
    base=STUDY,
    seeds=NEW,
    variations=(
        Variation("a quarter", {"batch_size": times(1 / 4), "steps": times(4.0)}, {"sink_0": 16.45, "loss": 3.92}),
        Variation("half", {"batch_size": times(1 / 2), "steps": times(2.0)}, {"sink_0": 17.19, "loss": 3.78}),
        Variation("all", {}, {"sink_0": 18.18, "loss": 3.73}, seeds=NEW_BASE),
        Variation("twice", {"batch_size": times(2.0), "steps": times(0.5)}, {"sink_0": 16.19, "loss": 3.68}),
    ),
    assertions=(
        within(
            math.log(1.5),
            rising("sink_mass", BATCHES, log=True),
            "little",
            "from a quarter of the batch to twice the batch the sink mass changes by less than a factor of 1.5 (the "
            "effect is the factor's logarithm)",
            TABLE_10,
            symmetric=True,
        ),
        most_models(
            ("a quarter", "half", "twice"),
            SINK,
            "always there",
            "most models have a sink with a quarter, half and twice the batch",
            TABLE_10,
        ),
    ),
)
