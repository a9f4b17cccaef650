"""Does a sink form without a fixed BOS in four times the steps?"""

from __future__ import annotations

from sinkscope.experiments import FromRecipe, Has, Question, Variation, most_models, times

STUDY = FromRecipe(job="replication")
SINK = Has("sink_0", 3.0)

TABLE_3, TABLE_11, TABLE_12 = (f"Gu et al. 2025, Table {number}" for number in (3, 11, 12))

QUESTION = Question(
    name="rotary-without-bos",
    asks="Does a sink form without a fixed BOS in four times the steps?",
    source="Gu et al. 2025, Table 3 and Figure 4",
    base=STUDY,
    seeds=range(3, 10),
    shared={"data.bos": "none", "steps": times(4.0)},
    variations=(Variation("6,000 steps", {}, {"sink_0": 18.18}),),
    assertions=(most_models("6,000 steps", SINK, "a sink", "most models have a sink without a fixed BOS", TABLE_3),),
    not_at=dict.fromkeys(("mini", "paper"), "it asks what can be asked at nano"),
)
