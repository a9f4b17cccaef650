"""Does instruction tuning change the sink?"""

from __future__ import annotations

from sinkscope.experiments import FromRecipe, Has, Question, Variation, above, gap, most_models, rising, within

TABLE_1 = "Gu et al. 2025, Table 1, base and chat models"
NONE_TO_START = "no model of this scale is shipped to start from"

QUESTION = Question(
    name="tuning",
    asks="Does instruction tuning change the sink?",
    source=TABLE_1,
    one_model=True,
    note="The seeds differ in the order of conversations alone.",
    base=FromRecipe("nano-sft", job="replication"),
    seeds=range(3, 10),
    variations=(
        # one step at the rate that a warm-up begins with, which is 0: the shipped model as it is, observed like a run
        Variation("before", {"steps": 1}, {"sink_0/plain_text": 92.47}),
        Variation("tuned", {}, {"sink_0/plain_text": 92.88}),
    ),
    assertions=(
        within(
            0.4,
            rising("sink_mass/plain_text", ("before", "tuned"), log=True),
            "unchanged",
            "on plain text the sink mass changes by less than a factor of 1.5 (the effect is the factor's logarithm)",
            f"{TABLE_1}: LLaMA2-7B 92.47 to 92.88, Mistral-7B 97.49 to 88.34",
            symmetric=True,
        ),
        most_models("tuned", Has("sink_0/plain_text", 3.0), "a sink remains", "most tuned models have a sink", TABLE_1),
        above(
            0.1,
            gap("loss", "before", "tuned"),
            "it learns",
            "the loss on responses falls by more than .1 nats",
            "our check that there was something to learn",
            symmetric=True,
        ),
    ),
    not_at={"mini": NONE_TO_START, "paper": NONE_TO_START},
)
