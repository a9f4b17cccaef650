"""A question about instruction tuning (Gu et al. 2025, appendix E)."""

from __future__ import annotations

from sinkscope.experiments import Assertion, Question, Variation, above, within
from sinkscope.experiments.effects import gap, level
from sinkscope_replication.assertions import FRESH, HAS_MASS, POINTS, by_mass_and_rate
from sinkscope_replication.questions.variations import nano_sft

TABLE_1 = "Gu et al. 2025, base and chat models"
NONE_TO_START = "no model of this scale is shipped to start from"


READINGS = {
    "/plain_text": "on plain text",
    "/as_chat": "on text as a user's message in the chat template",
    "": "on conversations",
}


def _unchanged(reading: str, where: str) -> tuple[Assertion, Assertion]:
    return by_mass_and_rate(
        within,
        POINTS,
        lambda sink: gap(sink(0, reading), "tuned", "before"),
        f"unchanged {where}",
        f"{where} the sink {{measure}} changes by at most {{points}}",
        f"{TABLE_1}: rates of LLaMA2-7B 92.47 to 92.88, LLaMA2-13B 91.69 to 90.94, LLaMA3-8B 99.02 to 98.85, "
        "Mistral-7B 97.49 to 88.34",
    )


tuning = Question(
    name="tuning",
    asks="Does instruction tuning change the sink?",
    source=TABLE_1,
    note="All runs start from one model. So the seeds differ in the order of conversations alone, and the intervals "
    "say nothing of other models.",
    base=nano_sft,
    variations=(
        # one step at the rate that a warm-up begins with, which is 0: the shipped model as it is, observed like a run
        Variation("before", {"steps": 1}, {"sink_0/plain_text": 92.47}),
        Variation("tuned", {}, {"sink_0/plain_text": 92.88}),
    ),
    assertions=(
        *(claim for reading, where in READINGS.items() for claim in _unchanged(reading, where)),
        above(
            HAS_MASS,
            level("sink_mass/plain_text", "tuned"),
            "mass remains",
            f"after tuning the sink mass at position 0 of plain text is more than {HAS_MASS:g} %",
            f"{TABLE_1}: rates of 88 to 99 %",
            FRESH,
        ),
        above(
            0.1,
            gap("loss", "before", "tuned"),
            "it learns",
            "the loss on responses falls by more than 0.1 nats (seeds order the conversations; the start is one model)",
            "our check that there was something to learn",
        ),
        above(
            POINTS,
            level("sink_0/plain_text", "tuned"),
            "a sink remains",
            "after tuning more than 3 % of heads have their sink at position 0 of plain text",
            f"{TABLE_1}: 88 to 99 %",
        ),
    ),
    not_at={"mini": NONE_TO_START, "paper": NONE_TO_START},
)

QUESTIONS = (tuning,)
